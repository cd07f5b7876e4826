#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_RECURRENT)
/* ---- gru, lstm: an item is some rows, which go through all steps side by side. Backward as many
 * rows as the threads have at once, then what these add to dwh and dbias ---- */
typedef struct {
    const gckpt_call *call;
    gckpti_sequence s;
    void (*cell)(const gckpti_cell *cell);
    int64_t first, rows, each; /* rows of all items, of one */
    float *turned, *zero;      /* wh' (G,H); H zeros */
    float *da, *h, *d, *pack;  /* of these rows: da (rows,T,G), h of before (rows,T,H), D [and E] */
} gckpti_unrolled;

static gckpti_unrolled gckpti_unrolled_of(const gckpt_call *call,
                                          void (*cell)(const gckpti_cell *cell))
{
    gckpti_unrolled c;
    memset(&c, 0, sizeof c);
    c.call = call;
    c.s = gckpti_sequence_of(call);
    c.cell = cell;
    c.rows = c.s.rows;
    c.each = gckpti_sequence_each(call, c.s.rows);
    return c;
}

/* c (m,n) = a b, each chain from `from`, on the calling thread. */
static void gckpti_unrolled_product(const gckpti_unrolled *s, const gckpti_product *t)
{
    float pack[GCKPTI_SMALL_ROOM] __attribute__((aligned(64)));
    gckpti_kernels_of(s->call)->product_piece(t, 0, t->m, 0, t->n, pack, GCKPTI_SMALL_ROOM);
}

static void gckpti_unrolled_forward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_unrolled *c = (const gckpti_unrolled *)context;
    const gckpti_sequence *s = &c->s;
    int64_t first = i * c->each, m = gckpti_min(s->rows - first, c->each),
            lstm = s->state - s->units;
    float *state = (float *)c->call->work + worker * c->each * (s->state + s->gates);
    float *a = state + c->each * s->state;
    for (int64_t r = 0; r < m; r++)
        gckpti_sequence_start(s, first + r, state + r * s->state);
    for (int64_t t = 0; t < s->steps; t++) {
        const float *p = s->p->data + (first * s->steps + t) * s->gates;
        gckpti_product product = { m, s->gates,    s->units, state, s->state,
                                   1, s->wh->data, s->gates, 1,     s->bias ? s->bias->data : NULL,
                                   0, a,           s->gates, NULL };
        if (lstm)
            product.from = p, product.from_row = s->steps * s->gates;
        gckpti_unrolled_product(c, &product);
        for (int64_t r = 0; r < m; r++) {
            float *row = state + r * s->state;
            gckpti_cell cell = gckpti_cell_of(c->call, s, first + r, t, row, a + r * s->gates);
            c->cell(&cell);
            if (c->call->out)
                memcpy(c->call->out + ((first + r) * s->steps + t) * s->state, row,
                       (size_t)s->state * sizeof *row);
        }
    }
}

static void gckpti_unrolled_forward(const gckpt_call *call, void (*cell)(const gckpti_cell *cell))
{
    gckpti_unrolled c = gckpti_unrolled_of(call, cell);
    gckpt_parallel(call, (c.rows - 1) / c.each + 1, c.each * c.s.steps * c.s.units * c.s.gates,
                   gckpti_unrolled_forward_item, &c);
}

/* Rows of wh': 16 gates. */
static void gckpti_unrolled_turn(void *context, int64_t i, int64_t worker)
{
    const gckpti_unrolled *c = (const gckpti_unrolled *)context;
    int64_t j0 = 16 * i, end = j0 + gckpti_min(c->s.gates - j0, 16), h = c->s.units;
    (void)worker;
    for (int64_t k0 = 0; k0 < h; k0 += 16)
        for (int64_t j = j0; j < end; j++)
            for (int64_t k = k0; k < h && k < k0 + 16; k++)
                c->turned[j * h + k] = c->s.wh->data[k * c->s.gates + j];
}

static void gckpti_unrolled_backward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_unrolled *c = (const gckpti_unrolled *)context;
    const gckpti_sequence *s = &c->s;
    int64_t at = i * c->each, m = gckpti_min(c->rows - at, c->each), row = s->steps * s->gates;
    float *d = c->d + at * s->state;
    (void)worker;
    memset(d, 0, (size_t)(m * s->state) * sizeof *d);
    for (int64_t t = s->steps; t-- > 0;) {
        float *da = c->da + at * row + t * s->gates;
        gckpti_product product = { m,        s->units, s->gates, da,       row, 1,        c->turned,
                                   s->units, 1,        d,        s->state, d,   s->state, NULL };
        for (int64_t r = 0; r < m; r++) {
            gckpti_cell cell = gckpti_cell_back(c->call, s, c->first + at + r, t, c->zero,
                                                d + r * s->state, da + r * row);
            c->cell(&cell);
            memcpy(c->h + ((at + r) * s->steps + t) * s->units, cell.h,
                   (size_t)s->units * sizeof *cell.h);
        }
        gckpti_unrolled_product(c, &product);
    }
    for (int64_t r = 0; r < m; r++)
        gckpti_sequence_end(s, c->first + at + r, d + r * s->state);
}

/* What these rows add to dwh and dbias. */
static void gckpti_unrolled_add(const gckpti_unrolled *c)
{
    const gckpti_sequence *s = &c->s;
    int64_t links = c->rows * s->steps;
    float *dwh = s->wh->grad;
    gckpti_product product = { s->units, s->gates, links, c->h,     1,   s->units, c->da,
                               s->gates, 1,        dwh,   s->gates, dwh, s->gates, NULL };
    gckpt_call sums = *c->call;
    sums.shape = gckpt_shape2(links, s->gates);
    sums.grad_out = c->da;
    if (dwh)
        gckpti_products_run(c->call, &product, 1, 0, 0, c->pack);
    if (s->bias) {
        sums.in[0] = *s->bias;
        sums.in[0].accumulate = 1;
        sums.in[1] = sums.in[0];
        gckpti_columns_run(&sums, 0, 1);
    }
}

static void gckpti_unrolled_backward(const gckpt_call *call, void (*cell)(const gckpti_cell *cell))
{
    gckpti_unrolled c = gckpti_unrolled_of(call, cell);
    const gckpti_sequence *s = &c.s;
    int64_t most = gckpti_sequence_rows(call, s->rows);
    c.turned = (float *)call->work;
    c.zero = c.turned + s->units * s->gates;
    c.d = c.zero + s->units;
    c.h = c.d + most * s->state;
    c.da = c.h + most * s->steps * s->units;
    c.pack = c.da + most * s->steps * s->gates;
    memset(c.zero, 0, (size_t)s->units * sizeof *c.zero);
    gckpt_parallel(call, (s->gates - 1) / 16 + 1, 64 * s->units, gckpti_unrolled_turn, &c);
    gckpti_sequence_begin(s);
    for (; c.first < s->rows; c.first += c.rows) {
        c.rows = gckpti_min(s->rows - c.first, most);
        gckpt_parallel(call, (c.rows - 1) / c.each + 1, c.each * s->steps * s->units * s->gates,
                       gckpti_unrolled_backward_item, &c);
        gckpti_unrolled_add(&c);
    }
}

GCKPTI_FN void gckpti_fast_gru_forward(const gckpt_call *call)
{
    gckpti_unrolled_forward(call, gckpti_kernels_of(call)->gru_gates);
}
GCKPTI_FN void gckpti_fast_gru_backward(const gckpt_call *call)
{
    gckpti_unrolled_backward(call, gckpti_kernels_of(call)->gru_slopes);
}
GCKPTI_FN void gckpti_fast_lstm_forward(const gckpt_call *call)
{
    gckpti_unrolled_forward(call, gckpti_kernels_of(call)->lstm_gates);
}
GCKPTI_FN void gckpti_fast_lstm_backward(const gckpt_call *call)
{
    gckpti_unrolled_backward(call, gckpti_kernels_of(call)->lstm_slopes);
}
#endif
