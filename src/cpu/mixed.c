#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_BF16)
/* ---- products of bf16 plans: an item is some rows and columns of c. Some blocks of links at a
 * time, a is packed, unless its rows can be read in place, and then b, panel by panel. ---- */

#if GCKPTI_X86
/* Between the two, subnormals are zeros; nothing is computed on the wrong side. */
static unsigned gckpti_flushing_begin(void)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u);
    __asm__ volatile("" ::: "memory");
    return mode;
}
static void gckpti_flushing_end(unsigned mode)
{
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(mode);
}
#else
static unsigned gckpti_flushing_begin(void) { return 0; }
static void gckpti_flushing_end(unsigned mode) { (void)mode; }
#endif

/* The least exponent (biased) of n factors that are not zeros. */
static uint32_t gckpti_least_exponent(const uint16_t *x, int64_t n)
{
    uint32_t least = 255;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t e = x[i] >> 7 & 255u;
        least = e && e < least ? e : least;
    }
    return least;
}

/* Whether no link can end below 2^-126, as where processors are not told to flush the tiles need:
 * what starts at +0 goes on in multiples of the two least exponents' last bits. */
static int gckpti_never_flushes(gckpti_mixed_part *s)
{
    const gckpti_mixed_tile *t = &s->tile;
    const void *words = t->b;
    if (GCKPTI_X86)
        return 1;
    const int known = s->least != 0;
    for (int64_t i = 0; !known && i < t->m; i++) {
        const uint32_t e = gckpti_least_exponent(t->a + i * t->a_row, t->blocks * GCKPTI_LINKS);
        s->least = i == 0 || e < s->least ? e : s->least;
    }
    return s->least + gckpti_least_exponent((const uint16_t *)words,
                                            t->blocks * GCKPTI_LINKS * t->b_row) >=
           127 + 127 + 14 - 126;
}

/* A tile where links may flush: an element at a time. */
static void gckpti_mixed_careful(const gckpti_mixed_tile *t, int chain)
{
    const int64_t links = (t->blocks - 1) * GCKPTI_LINKS + t->last;
    const int upper = gckpti_little_endian(); /* of odd links */
    uint16_t column[GCKPTI_LINKS];
    gckpti_product all;
    memset(&all, 0, sizeof all);
    all.run = chain;
    for (int64_t j = 0; j < t->width; j++)
        for (int64_t i = 0; i < t->m; i++) {
            float d = t->from ? t->from[i * t->from_row + j] : 0.0f;
            for (int64_t p = 0; p < links; p += GCKPTI_LINKS) {
                all.k = gckpti_min(links - p, GCKPTI_LINKS);
                for (int64_t l = 0; l < all.k; l++)
                    column[l] =
                        (uint16_t)(t->b[(p + l) / 2 * t->b_row + j] >> (l % 2 == upper ? 16 : 0));
                all.a.bf16 = t->a + i * t->a_row + p, all.b.bf16 = column;
                all.a.step = all.b.step = 1;
                d = gckpti_mixed_element(&all, 0, 0, d);
            }
            t->c[i * t->c_row + j] = d;
        }
}

/* Nor can where chains do not start at +0, but at n columns of these. */
static int gckpti_starts_high(const gckpti_mixed_tile *t, int64_t n)
{
    int high = 1;
    for (int64_t i = 0; t->from && i < t->m; i++)
        for (int64_t j = 0; j < n; j++) {
            const uint32_t size = gckpti_bits(t->from[i * t->from_row + j]) << 1;
            high = high && (!size || size >> 24 >= 127 + 23 - 126);
        }
    return high;
}

/* n columns of m rows, from one array of rows to another. */
static void gckpti_copy_rows(const float *x, int64_t x_row, float *y, int64_t y_row, int64_t m,
                             int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        memcpy(y + i * y_row, x + i * x_row, (size_t)n * sizeof *y);
}

/* Tile t, of whose columns n exist: where it has fewer rows or columns than tiles take, or c has no
 * floats, it works in `rest`. Of an a in place that ends too early it begins with rows before t's.
 * start: as s->start, for t. */
static void gckpti_mixed_rows(const gckpti_mixed_part *s, const gckpti_mixed_tiles *by, int exact,
                              gckpti_mixed_tile *t, int64_t n, const uint16_t *start)
{
    float rest[32 * GCKPTI_PANEL] GCKPTI_ALIGNED;
    const gckpti_mixed_tile all = *t;
    const int whole = exact && t->m < by->unit;
    const int64_t skip = whole ? gckpti_min(s->back, by->unit - t->m) : 0, m = t->m;
    float *at = rest + skip * GCKPTI_PANEL;
    const int edge = whole || n < t->width;
    if (edge || !t->c) {
        t->c = rest, t->c_row = GCKPTI_PANEL, t->more = 0;
        if (edge && all.from && !start)
            gckpti_copy_rows(all.from, all.from_row, at, GCKPTI_PANEL, m, n);
        if (edge && all.from)
            t->from = rest, t->from_row = GCKPTI_PANEL;
    }
    for (int64_t i = 0; start && i < m; i++)
        s->by->widen(start + i * all.narrow_row, (t->c == rest ? at : t->c) + i * t->c_row, n);
    if (start)
        t->from = t->c, t->from_row = t->c_row;
    if (!GCKPTI_X86 && s->chain)
        exact = exact && gckpti_starts_high(t, n);
    if (whole)
        t->m = by->unit, t->a -= skip * t->a_row;
    if (edge || !exact)
        t->c_bf16 = NULL;
    if (exact)
        by->run(t);
    else
        t->width = n, gckpti_mixed_careful(t, s->chain);
    if (all.c_bf16 && !t->c_bf16)
        for (int64_t i = 0; i < m; i++)
            s->by->narrow((edge ? at : t->c) + i * t->c_row, all.c_bf16 + i * all.narrow_row, n);
    else if (edge)
        gckpti_copy_rows(at, GCKPTI_PANEL, all.c, all.c_row, m, n);
}

GCKPTI_FN void gckpti_mixed_multiply(gckpti_mixed_part *s)
{
    const gckpti_mixed_tile *all = &s->tile;
    const gckpti_mixed_tiles *by = &s->by->tiles[s->chain];
    const int exact = gckpti_never_flushes(s);
    const int64_t columns = s->n > by->columns && s->n % by->columns < 32 ? 32 : by->columns;
    const unsigned mode = gckpti_flushing_begin();
    const int64_t back = s->back;
    for (int64_t j = 0; j < s->n; j += columns)
        for (int64_t r = 0, m; r < all->m; r += m) {
            const int64_t n = gckpti_min(s->n - j, columns);
            gckpti_mixed_tile t = *all;
            m = gckpti_min(all->m - r, by->rows), m -= m < by->unit ? 0 : m % by->unit;
            t.m = m, t.width = gckpti_multiple(n, 16);
            t.a += r * t.a_row, t.b += j, s->back = back + r;
            t.from = t.from ? t.from + r * t.from_row + j : NULL;
            t.c = t.c ? t.c + r * t.c_row + j : NULL;
            t.c_bf16 = t.c_bf16 ? t.c_bf16 + r * t.narrow_row + j : NULL;
            t.more = t.c ? all->more - r : 0;
            t.fetch = t.fetch && t.fetch->rows > 0 ? t.fetch : &s->ahead;
            gckpti_mixed_rows(s, by, exact, &t, n,
                              s->start ? s->start + r * t.narrow_row + j : NULL);
        }
    s->back = back;
    gckpti_flushing_end(mode);
}

typedef struct {
    gckpti_products by;
    const gckpti_mixed_kernels *kernels;
    int in_place, keeps;   /* a is not packed; rest has all rows of an item */
    int64_t blocks, panel; /* at a time; columns of a panel */
} gckpti_mixed_job;

/* What of an item is worked on. */
typedef struct {
    gckpti_mixed_part part;
    int64_t matrix, i, p, end, j; /* rows i.., links p..end-1, columns j.. */
    float *rest;                  /* of columns j.., or NULL */
} gckpti_mixed_panel;

/* Where elements of a panel start, rest and end. */
static void gckpti_mixed_places(const gckpti_mixed_job *s, gckpti_mixed_panel *w)
{
    const gckpti_product *t = s->by.t;
    gckpti_mixed_tile *tile = &w->part.tile;
    const int64_t at = (w->matrix * t->m + w->i) * t->n + w->j;
    const int first = w->p == 0, last = w->end == t->k;
    tile->c = t->c ? t->c + at : w->rest, tile->c_row = t->c ? t->n : s->panel;
    tile->more = tile->m;
    tile->c_bf16 = !t->c && last ? t->c_bf16 + at : NULL, tile->narrow_row = t->n;
    w->part.start = first && t->accumulate && !t->c ? t->c_bf16 + at : NULL;
    tile->from = tile->c, tile->from_row = tile->c_row;
    if (first && !(t->accumulate && t->c))
        tile->from = t->start && !t->accumulate ? t->start + w->j : NULL, tile->from_row = 0;
}

/* What of b comes next: the panel beside this one, links after these, or, as it is expected to
 * work on the next item but the other threads', that. */
static gckpti_fetch gckpti_mixed_next(const gckpti_mixed_job *s, const gckpti_mixed_panel *w,
                                      const gckpti_rectangle *piece)
{
    const gckpti_product *t = s->by.t;
    const gckpti_factor *b = &t->b;
    int64_t p = w->p, j = w->j + s->panel;
    if (j >= piece->j1 && w->end < t->k)
        p = w->end, j = piece->j0;
    else if (j >= piece->j1)
        p = 0, j = piece->j0 + s->by.call->threads * s->by.cols;
    int64_t at = w->matrix * b->next + j * b->row + p * b->step;
    int64_t n = gckpti_min(t->n - j, s->panel);
    int64_t links = gckpti_min(t->k - p, s->blocks * GCKPTI_LINKS);
    return b->row == 1 ? gckpti_fetch_of(b, at, b->step, n > 0 ? links : 0, n)
                       : gckpti_fetch_of(b, at, b->row, n, links);
}

/* What of a is packed next, if it is another part: links after these or, as above, those of the
 * next item. */
static gckpti_fetch gckpti_mixed_ahead(const gckpti_mixed_job *s, const gckpti_mixed_panel *w,
                                       int64_t item)
{
    const gckpti_products *by = &s->by;
    const gckpti_factor *a = &by->t->a;
    const int last = w->end == by->t->k;
    int64_t next = last ? item + by->call->threads : item, p = last ? 0 : w->end;
    int64_t i = next / by->across % by->down * by->rows;
    int64_t at = w->matrix * a->next + i * a->row + p * a->step;
    int other = !s->in_place && next < by->across * by->down && (i != w->i || p != w->p);
    int64_t links = other ? gckpti_min(by->t->k - p, s->blocks * GCKPTI_LINKS) : 0;
    int64_t rows = gckpti_min(by->t->m - i, by->rows);
    return a->step == 1 ? gckpti_fetch_of(a, at, a->row, other ? rows : 0, links)
                        : gckpti_fetch_of(a, at, a->step, links, rows);
}

/* As many blocks as are taken at a time, from link p on: where they end. */
static int64_t gckpti_mixed_end(const gckpti_mixed_job *s, int64_t p, gckpti_mixed_tile *tile)
{
    const gckpti_product *t = s->by.t;
    for (tile->blocks = 0; tile->blocks < s->blocks && p < t->k; tile->blocks++) {
        tile->last = gckpti_block_at(t, p);
        p += tile->last;
    }
    return p;
}

static void gckpti_mixed_piece(const gckpti_products *by, const gckpti_rectangle *at, float *room,
                               int64_t floats)
{
    const gckpti_mixed_job *s = (const gckpti_mixed_job *)(const void *)by;
    const gckpti_product *t = by->t;
    gckpti_mixed_panel w;
    memset(&w, 0, sizeof w);
    (void)floats; /* for so many it is cut */
    gckpti_mixed_tile *tile = &w.part.tile;
    w.part.by = s->kernels, w.part.chain = gckpti_is_chain(t);
    w.matrix = at->matrix, w.i = at->i0, tile->m = at->i1 - at->i0;
    const int words = s->kernels->tiles[w.part.chain].words;
    const int64_t deep = GCKPTI_LINKS / 2 * s->blocks;
    float *rest = room;
    room += s->keeps ? s->by.rows * s->by.cols : 0;
    void *a = room, *b = room + (s->in_place ? 0 : s->by.rows * deep); /* tiles read past a */
    gckpti_mixed_ready(s->kernels, 1);
    tile->b = (const uint32_t *)b;
    for (; w.p < t->k; w.p = w.end) {
        gckpti_mixed_links of_a = {
            t, &t->a, w.matrix * t->a.next + w.i * t->a.row, tile->m, w.p, 0
        };
        w.end = gckpti_mixed_end(s, w.p, tile);
        of_a.blocks = tile->blocks, w.part.least = 0;
        tile->a = (const uint16_t *)a, tile->a_row = 2 * deep, w.part.back = 0;
        if (s->in_place)
            tile->a = t->a.bf16 + of_a.at + w.p, tile->a_row = t->a.row, w.part.back = w.i;
        else
            s->kernels->pack_a(&of_a, words, (uint16_t *)a, tile->a_row);
        w.part.ahead = gckpti_mixed_ahead(s, &w, at->item);
        for (w.j = at->j0; w.j < at->j1; w.j += w.part.n) {
            gckpti_mixed_links of_b = { t, &t->b, w.matrix * t->b.next + w.j * t->b.row,
                                        0, w.p,   tile->blocks };
            of_b.n = w.part.n = gckpti_min(at->j1 - w.j, s->panel);
            tile->b_row = gckpti_multiple(w.part.n, 16);
            w.rest = s->keeps ? rest + s->by.rows * (w.j - at->j0) : NULL;
            s->kernels->pack_b(&of_b, words, (uint32_t *)b, tile->b_row);
            gckpti_fetch fetch = gckpti_mixed_next(s, &w, at);
            fetch.pace = 1 + fetch.rows * (fetch.width / 64) / (tile->blocks * (1 + tile->m / 4));
            tile->fetch = &fetch;
            gckpti_mixed_places(s, &w);
            gckpti_mixed_multiply(&w.part);
        }
    }
    gckpti_mixed_ready(s->kernels, 0);
}

/* Rows and columns of an item, and blocks at a time, that `room` floats are enough for; in even
 * parts. */
static void gckpti_mixed_fit(gckpti_mixed_job *s, int64_t rows, int64_t cols, int64_t room)
{
    const gckpti_product *t = s->by.t;
    const int64_t run = t->run && !gckpti_is_chain(t) ? gckpti_min(t->run, t->k) : t->k;
    const int64_t each = (run + GCKPTI_LINKS - 1) / GCKPTI_LINKS;
    int64_t fit;
    const int64_t all = run ? (t->k + run - 1) / run * each + (t->before > 0) : 0;
    s->by.rows = gckpti_min(gckpti_multiple(t->m, GCKPTI_STRIP), rows);
    s->by.cols = gckpti_min(gckpti_multiple(t->n, s->panel), cols);
    for (s->keeps = 0, fit = -1; fit < 1;) {
        fit = (room - (s->keeps ? s->by.rows * s->by.cols : 0)) /
              (GCKPTI_LINKS / 2 * (s->panel + (s->in_place ? 0 : s->by.rows)));
        fit = gckpti_min(fit, (int)GCKPTI_MIXED_LINKS / GCKPTI_LINKS);
        if (!s->keeps && fit < all && !t->c)
            s->keeps = 1, fit = -1;
        else if (fit < 1 && s->by.cols > s->panel)
            s->by.cols -= s->panel;
        else if (fit < 1)
            s->by.rows = gckpti_multiple(s->by.rows / 2, GCKPTI_STRIP);
    }
    s->blocks = fit >= all ? all : (all + (all + fit - 1) / fit - 1) / ((all + fit - 1) / fit);
}

/* c is cut into 4 items a thread, if it is large; each packs its b: more rows, if a is in place. */
GCKPTI_FN void gckpti_mixed_fast(const gckpt_call *call, const gckpti_product *t)
{
    gckpti_mixed_job s;
    memset(&s, 0, sizeof s);
    s.by.call = call, s.by.t = t, s.by.piece = gckpti_mixed_piece;
    s.kernels = gckpti_kernels_of(call)->mixed;
    s.panel = s.kernels->tiles[gckpti_is_chain(t)].columns;
    s.in_place = gckpti_in_place(s.kernels, &t->a) && t->k % GCKPTI_LINKS == 0 && !t->run &&
                 t->m >= s.kernels->tiles[0].unit;
    s.by.room = gckpti_mixed_room(t->m, t->n, t->k);
    if (s.by.room)
        gckpti_mixed_fit(&s, s.in_place ? 2 * GCKPTI_MIXED_ROWS : GCKPTI_MIXED_ROWS,
                         t->c ? 2 * GCKPTI_NC : GCKPTI_NC, s.by.room);
    else
        gckpti_mixed_fit(&s, 64, s.panel, GCKPTI_SMALL_ROOM);
    int64_t pieces = t->m * t->n * t->k < 65536 || call->threads < 2 ? 1 : 4 * call->threads;
    for (;;) {
        s.by.down = (t->m + s.by.rows - 1) / s.by.rows;
        s.by.across = (t->n + s.by.cols - 1) / s.by.cols;
        if (t->batch * s.by.down * s.by.across >= pieces)
            break;
        if (s.by.cols > s.panel && (s.in_place || s.by.cols > s.by.rows))
            s.by.cols = gckpti_multiple(s.by.cols / 2, s.panel);
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
                                         0x7f800001, 0xffffffff, 0x007fffff, 0x80000001 };
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

/* A small product of blocks (two, the second one of 17 links) or of a chain: instructions that
 * round, order or flush in another way would show here. Rows: usual numbers; through subnormals; to
 * the least normal number and half a unit below it, which is a zero; a chain at -0, which would
 * be +0 if missing links were +0 x +0; an infinity. wide: of floats, which packing rounds. */
static int gckpti_product_agrees(const gckpti_mixed_kernels *kernels, int64_t run, int wide)
{
    enum { M = 8, N = 16, K = 49, ROOM = 2 * 16 * (GCKPTI_PANEL + 32) };
    static const uint16_t numbers[8] = { 0x3f81, 0xbf83, 0x0081, 0x3f00,
                                         0x3dcd, 0x8085, 0x4049, 0xc2f7 };
    uint16_t a[(M + N) * K], *const b = a + M * K;
    float c[M * N], start[M * N], room[ROOM] GCKPTI_ALIGNED, f32[(M + N) * K];
    int same = 1;
    for (int p = 0; p < K; p++)
        for (int i = 0; i < N; i++) {
            b[i * K + p] = numbers[(3 * p + i) % 8];
            if (i < M)
                a[i * K + p] = (uint16_t)(i < 4   ? numbers[(p * 3 + i + i / 5) % 8]
                                          : p & 1 ? 0x8000
                                                  : 0);
        }
    for (int i = 0; i < N; i += 3)
        b[i * K] = 0x0080, b[i * K + 1] = 0x3f80, b[i * K + 2] = 0x9980, b[i * K + 48] = 0x8080;
    a[4 * K] = 0x3f80, a[4 * K + 2] = 0x1a40, a[5 * K + 48] = 0x3f00, a[6 * K + 1] = 0x7f80;
    gckpti_product t;
    memset(&t, 0, sizeof t);
    t.batch = 1, t.m = M, t.n = N, t.k = K, t.run = run, t.c = c, t.c_row = N, t.accumulate = 1;
    for (int i = 0; i < (M + N) * K; i++)
        f32[i] = gckpti_from_bf16(a[i]) * 1.00390625f;
    t.a.f32 = f32, t.b.f32 = f32 + M * K, t.a.bf16 = wide ? NULL : a, t.b.bf16 = wide ? NULL : b;
    t.a.row = t.b.row = K, t.a.step = t.b.step = 1;
    const gckpti_rectangle all = { 0, M, 0, N, 0, 0 };
    gckpti_mixed_job s;
    memset(&s, 0, sizeof s);
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.threads = 1;
    s.by.call = &call, s.by.t = &t, s.by.rows = 32, s.by.cols = GCKPTI_PANEL, s.by.across = 1;
    s.by.down = 1, s.kernels = kernels, s.blocks = 2, s.panel = GCKPTI_PANEL;
    for (int i = 0; i < M * N; i++)
        c[i] = i / N > 3 ? -0.0f : i % 5 ? 1.0f / (float)(i - 300) : 1e-38f;
    memcpy(start, c, sizeof start);
    gckpti_mixed_piece(&s.by, &all, room, ROOM);
    for (int i = 0; i < M * N; i++) {
        const uint32_t x = gckpti_bits(gckpti_mixed_element(&t, i / N * K, i % N * K, start[i]));
        same = same && (x == gckpti_bits(c[i]) || (x << 1 > 0xff000000u && c[i] != c[i]));
    }
    return same;
}

GCKPTI_FN int gckpti_mixed_agrees(const gckpti_kernels *kernels)
{
    const gckpti_mixed_kernels *mixed = kernels->mixed;
    return gckpti_product_agrees(mixed, 0, 0) && gckpti_product_agrees(mixed, 0, 1) &&
           gckpti_product_agrees(mixed, 1, 0) && gckpti_narrow_agrees(mixed);
}
#endif
