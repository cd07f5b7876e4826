#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_BF16)
/* ---- products of bf16 plans: an item is some rows and columns of c. Some links at a time, a is
 * packed, unless its rows can be read where they are, and then b, panel by panel. ---- */
typedef struct {
    gckpti_products by;
    const gckpti_mixed_kernels *kernels;
    int in_place, keeps; /* a is not packed; rest has all rows of a panel */
    int64_t links;       /* at a time */
    int64_t odd;         /* last links, packed even so: the last word would end past a's row */
} gckpti_mixed_job;

/* What of an item is worked on. */
typedef struct {
    gckpti_mixed_tile tile;
    int64_t matrix, i, m, p, j, n; /* rows i.. (m of them), links p.., columns j.. (n) */
    int last;                      /* no links come after these */
    float *rest;
} gckpti_mixed_panel;

/* n columns of a row of c, `at` in it: where their chains start or go on, or back to c. */
static void gckpti_mixed_row(const gckpti_mixed_job *s, const gckpti_mixed_panel *w, int64_t at,
                             float *rest, int end)
{
    const gckpti_product *t = s->by.t;
    size_t bytes = (size_t)w->n * sizeof *rest;
    if (end && t->c)
        memcpy(t->c + at, rest, bytes);
    else if (end)
        s->kernels->narrow(rest, t->c_bf16 + at, w->n);
    else if (t->c && (t->accumulate || w->p > 0))
        memcpy(rest, t->c + at, bytes);
    else if (t->accumulate)
        s->kernels->widen(t->c_bf16 + at, rest, w->n);
    else if (t->start)
        memcpy(rest, t->start + w->j, bytes);
    else
        memset(rest, 0, bytes);
}

/* 8 rows of a panel from row r on. If a is read in place and there are fewer, the tile begins with
 * rows before them (where odd links are packed: with whatever is there), which are not stored
 * again. A tile at an edge of c works in `rest`, as all do whose c is bf16 until the last link. */
static void gckpti_mixed_rows(const gckpti_mixed_job *s, const gckpti_mixed_panel *w, int64_t r)
{
    const gckpti_product *t = s->by.t;
    gckpti_mixed_tile tile = w->tile;
    int64_t past = w->i + r + 8 - t->m, skip = s->in_place && past > 0 ? past : 0;
    int64_t end = skip ? 8 : gckpti_min(w->m - r, 8);
    int64_t at = (w->matrix * t->m + w->i + r - skip) * t->n + w->j;
    int first = w->p == 0, edge = end - skip < 8 || w->n < tile.width;
    int load = edge ? first || t->c : first && t->accumulate && !t->c;
    float *rest = w->rest + (s->keeps ? r * GCKPTI_PANEL : 0);
    if (!s->in_place && t->a.step != 1) /* strips */
        tile.a += r / GCKPTI_STRIP * tile.pairs * tile.a_step + r % GCKPTI_STRIP * 2;
    else
        tile.a += (r - skip) * tile.a_row;
    tile.from = tile.c = rest, tile.from_row = tile.c_row = GCKPTI_PANEL;
    if (!edge && first && !t->accumulate)
        tile.from = t->start ? t->start + w->j : NULL, tile.from_row = 0;
    else if (!edge && t->c)
        tile.from = t->c + at, tile.from_row = t->n;
    if (!edge && t->c)
        tile.c = t->c + at, tile.c_row = t->n,
        tile.next = r + 16 <= w->m ? tile.c + 8 * t->n : NULL;
    else if (!edge && w->last)
        tile.c_bf16 = t->c_bf16 + at, tile.c_row = t->n;
    for (int64_t q = skip; q < end && load; q++)
        gckpti_mixed_row(s, w, at + q * t->n, rest + q * GCKPTI_PANEL, 0);
    s->kernels->tile(&tile);
    for (int64_t q = skip; q < end && edge && (t->c || w->last); q++)
        gckpti_mixed_row(s, w, at + q * t->n, rest + q * GCKPTI_PANEL, 1);
}

/* The links of a that an item takes next: where they are, or packed to d. Rows stay rows. */
static void gckpti_mixed_a(const gckpti_mixed_job *s, gckpti_mixed_panel *w, int64_t k, void *d)
{
    const gckpti_factor *a = &s->by.t->a;
    int64_t at = w->matrix * a->next + w->i * a->row + w->p * a->step;
    int64_t high = gckpti_multiple(w->m, 8), row = gckpti_multiple(k, 2);
    uint16_t *to = (uint16_t *)d;
    w->tile.a = to, w->tile.a_row = row, w->tile.a_step = 2;
    if (s->in_place && k % 2 == 0) {
        w->tile.a = a->bf16 + at, w->tile.a_row = a->row;
    } else if (a->step != 1) {
        w->tile.a_row = 2, w->tile.a_step = 2 * GCKPTI_STRIP;
        s->kernels->pack(a, at, w->m, k, 1, (uint32_t *)d, GCKPTI_STRIP);
    } else {
        for (int64_t i = 0; i < w->m; i++, at += a->row, to += row) {
            to[row - 1] = 0x8000;
            if (a->bf16)
                memcpy(to, a->bf16 + at, (size_t)k * sizeof *to);
            else
                s->kernels->narrow(a->f32 + at, to, k);
        }
        memset(to, 0, (size_t)((high - w->m) * row) * sizeof *to);
    }
}

/* What of b comes next: the panel beside this one, links after these, or, as it is expected to
 * work on the next item but the other threads', that. */
static gckpti_fetch gckpti_mixed_next(const gckpti_mixed_job *s, const gckpti_mixed_panel *w,
                                      const gckpti_rectangle *piece, int64_t k)
{
    const gckpti_product *t = s->by.t;
    const gckpti_factor *b = &t->b;
    int64_t p = w->p, j = w->j + GCKPTI_PANEL;
    if (j >= piece->j1 && !w->last)
        p += k, j = piece->j0;
    else if (j >= piece->j1)
        p = 0, j = piece->j0 + s->by.call->threads * s->by.cols;
    int64_t at = w->matrix * b->next + j * b->row + p * b->step;
    int64_t n = gckpti_min(t->n - j, GCKPTI_PANEL), links = gckpti_min(t->k - p, s->links);
    return b->row == 1 ? gckpti_fetch_of(b, at, b->step, n > 0 ? links : 0, n)
                       : gckpti_fetch_of(b, at, b->row, n, links);
}

/* What of a is packed in strips next, if it is another part: links after these or, as above, those
 * of the next item. */
static gckpti_fetch gckpti_mixed_ahead(const gckpti_mixed_job *s, const gckpti_mixed_panel *w,
                                       int64_t item, int64_t k)
{
    const gckpti_products *by = &s->by;
    const gckpti_factor *a = &by->t->a;
    int64_t next = w->last ? item + by->call->threads : item, p = w->last ? 0 : w->p + k;
    int64_t i = next / by->across % by->down * by->rows;
    int64_t at = w->matrix * a->next + i * a->row + p * a->step;
    int other = a->step != 1 && next < by->across * by->down && (i != w->i || p != w->p);
    return gckpti_fetch_of(a, at, a->step, other ? gckpti_min(by->t->k - p, s->links) : 0,
                           gckpti_min(by->t->m - i, by->rows));
}

static void gckpti_mixed_piece(const gckpti_products *by, const gckpti_rectangle *at, float *room,
                               int64_t floats)
{
    const gckpti_mixed_job *s = (const gckpti_mixed_job *)(const void *)by;
    const gckpti_product *t = by->t;
    gckpti_mixed_panel w;
    memset(&w, 0, sizeof w);
    (void)floats; /* for so many it is cut */
    w.matrix = at->matrix, w.i = at->i0, w.m = at->i1 - at->i0;
    float *rest = room;
    room += s->keeps ? s->by.rows * s->by.cols : 8 * GCKPTI_PANEL;
    void *a = room + GCKPTI_PANEL / 2 * s->links, *b = room;
    w.tile.b = (const uint32_t *)b;
    for (int64_t k; w.p < t->k; w.p += k) {
        k = gckpti_min(t->k - (w.p < t->k - s->odd ? s->odd : 0) - w.p, s->links);
        w.tile.pairs = (k + 1) / 2, w.last = w.p + k == t->k;
        gckpti_mixed_a(s, &w, k, a);
        gckpti_fetch ahead = gckpti_mixed_ahead(s, &w, at->item, k);
        for (w.j = at->j0; w.j < at->j1; w.j += w.n) {
            w.n = gckpti_min(at->j1 - w.j, GCKPTI_PANEL), w.tile.width = gckpti_multiple(w.n, 16);
            w.rest = rest + (s->keeps ? s->by.rows * (w.j - at->j0) : 0);
            s->kernels->pack(&t->b, w.matrix * t->b.next + w.j * t->b.row + w.p * t->b.step, w.n, k,
                             0, (uint32_t *)b, w.tile.width);
            gckpti_fetch fetch = gckpti_mixed_next(s, &w, at, k);
            w.tile.fetch = &fetch;
            for (int64_t r = 0; r < w.m; r += 8) {
                gckpti_mixed_rows(s, &w, r);
                if (fetch.rows <= 0)
                    w.tile.fetch = &ahead;
            }
        }
    }
}

/* Rows and columns of an item, and links at a time, that `room` floats are enough for; in even
 * parts. */
static void gckpti_mixed_fit(gckpti_mixed_job *s, int64_t rows, int64_t cols, int64_t room)
{
    const gckpti_product *t = s->by.t;
    int64_t fit = 0, most = gckpti_multiple(t->k, 16), k = t->k - s->odd;
    s->by.rows = gckpti_min(gckpti_multiple(t->m, GCKPTI_STRIP), rows);
    s->by.cols = gckpti_min(gckpti_multiple(t->n, GCKPTI_PANEL), cols);
    room -= s->odd ? 8 * s->by.rows : 0;
    for (s->keeps = 0; s->keeps < 2; s->keeps++) {
        fit = (room - (s->keeps ? s->by.rows * s->by.cols : (int64_t)8 * GCKPTI_PANEL)) /
              (GCKPTI_PANEL / 2 + (s->in_place ? 0 : s->by.rows / 2)) / 16 * 16;
        fit = gckpti_min(fit, 3 * GCKPTI_MIXED_LINKS);
        if ((fit >= k && !s->odd) || t->c)
            break;
    }
    s->keeps = (fit < k || s->odd) && !t->c;
    s->links = gckpti_multiple(k / ((k + fit - 1) / fit), 16);
    s->links = gckpti_min(gckpti_min(s->links, fit), most);
}

/* c is cut into 4 items for each thread, if it is large; where there is no tile, plainly. */
GCKPTI_FN void gckpti_mixed_fast(const gckpt_call *call, const gckpti_product *t)
{
    gckpti_mixed_job s;
    memset(&s, 0, sizeof s);
    s.by.call = call, s.by.t = t, s.by.piece = gckpti_mixed_piece;
    s.kernels = gckpti_kernels_of(call)->mixed;
    if (!s.kernels->tile) {
        gckpti_mixed_plain(call, t);
        return;
    }
    s.in_place =
        t->a.bf16 && t->a.step == 1 && t->m >= 8 && (t->k % 2 == 0 || t->k > GCKPTI_MIXED_LINKS);
    s.odd = s.in_place && t->k % 2 ? t->k % 16 : 0;
    s.by.room = gckpti_mixed_room(t->m, t->n, t->k);
    if (s.by.room)
        gckpti_mixed_fit(&s, GCKPTI_MIXED_ROWS, t->c ? 2 * GCKPTI_NC : GCKPTI_NC, s.by.room);
    else
        gckpti_mixed_fit(&s, 64, GCKPTI_PANEL, GCKPTI_SMALL_ROOM);
    int64_t pieces = t->m * t->n * t->k < 65536 || call->threads < 2 ? 1 : 4 * call->threads;
    for (;;) {
        s.by.down = (t->m + s.by.rows - 1) / s.by.rows;
        s.by.across = (t->n + s.by.cols - 1) / s.by.cols;
        if (t->batch * s.by.down * s.by.across >= pieces)
            break;
        if (s.by.cols > GCKPTI_PANEL && (s.in_place || s.by.cols > s.by.rows))
            s.by.cols = gckpti_multiple(s.by.cols / 2, GCKPTI_PANEL);
        else if (s.by.rows > 64)
            s.by.rows = gckpti_multiple(s.by.rows / 2, GCKPTI_STRIP);
        else
            break;
    }
    gckpti_products_run(&s.by);
}

/* ---- do they agree with the plain ones? ---- */

/* Ties, infinities, NaN and subnormals, rounded. */
static int gckpti_narrow_agrees(const gckpti_mixed_kernels *kernels)
{
    static const uint32_t numbers[9] = { 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0xff800000,
                                         0x7f800001, 0xffc12345, 0x007fffff, 0x80000001 };
    float x[25];
    uint16_t narrow[25];
    int same = 1;
    for (int i = 0; i < 25; i++)
        x[i] = gckpti_float(numbers[i % 9]);
    kernels->narrow(x, narrow, 25);
    for (int i = 0; i < 25; i++)
        same = same && narrow[i] == gckpti_to_bf16(gckpti_float(numbers[i % 9]));
    return same;
}

/* A tile's chains, one of them through subnormals, two of the least normal number and what makes it
 * a zero in the end: instructions that round, order or flush in another way would show here. */
static int gckpti_tile_agrees(const gckpti_mixed_kernels *kernels)
{
    static const uint16_t numbers[8] = { 0x3f81, 0xbf83, 0x0081, 0x3f00,
                                         0x3dcd, 0x8085, 0x4049, 0xc2f7 };
    uint16_t a[8 * 16];
    uint32_t b[8 * 16];
    float c[8 * 16];
    const float least = gckpti_float(0x00800000u);
    const gckpti_mixed_tile t = { 8, 16, 2, 16, 16, 16, a, b, c, c, NULL, NULL, NULL };
    int same = 1;
    if (!kernels->tile)
        return 1;
    for (int p = 0; p < 8; p++)
        for (int i = 0; i < 16; i++) {
            b[16 * p + i] = (uint32_t)numbers[(3 * p + i) % 8] << 16 | numbers[(p + 5 * i) % 8];
            a[16 * p + i] = p < 6 ? numbers[(p * 3 + i + i / 5) % 8] : 0;
            c[16 * p + i] = p > 5 ? least : p ? 1.0f / (float)(p - 20 * i - 1) : 1e-38f;
        }
    a[16 * 6 + 14] = a[16 * 7 + 15] = 0x1a40, b[16 * 7 + 3] = 0x99809980u;
    kernels->tile(&t);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 16; j++) {
            float d = i > 5 ? least : i ? 1.0f / (float)(i - 20 * j - 1) : 1e-38f;
            for (int p = 0; p < 8; p++) {
                uint32_t y = b[16 * p + j];
                d = gckpti_mixed_link(a[16 * i + 2 * p], (uint16_t)(y >> 16), d);
                d = gckpti_mixed_link(a[16 * i + 2 * p + 1], (uint16_t)y, d);
            }
            same = same && gckpti_bits(d) == gckpti_bits(c[16 * i + j]);
        }
    return same;
}

GCKPTI_FN int gckpti_mixed_agrees(const gckpti_kernels *kernels)
{
    return gckpti_tile_agrees(kernels->mixed) && gckpti_narrow_agrees(kernels->mixed);
}
#endif
