#include "bf16/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_BF16)
/* ---- products of bf16 plans: an item is some rows and columns of c. For some blocks of terms at
 * a time, it packs a (unless tiles read it in place), then packs and multiplies b by panels ---- */

#if GCKPTI_X86
/* Between gckpti_ftz_begin and gckpti_ftz_end, the processor takes subnormals as zeros. */
static unsigned gckpti_ftz_begin(void)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u);
    __asm__ volatile("" ::: "memory");
    return mode;
}
static void gckpti_ftz_end(unsigned mode)
{
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(mode);
}
#else
static unsigned gckpti_ftz_begin(void) { return 0; }
static void gckpti_ftz_end(unsigned mode) { (void)mode; }
#endif

/* Returns the least nonzero biased exponent of n bf16 values, or 255 if no exponent is nonzero. */
static uint32_t gckpti_min_exponent(const uint16_t *x, int64_t n)
{
    uint32_t least = 255;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t e = x[i] >> 7 & 255u;
        least = e && e < least ? e : least;
    }
    return least;
}

/* Returns whether no sum can be subnormal, as tiles need if the processor does not flush: sums from
 * +0 are multiples of the product of the last bits that the least exponents of a and b allow. */
static int gckpti_never_flushes(gckpti_packed_product *s)
{
    const gckpti_mixed_tile *t = &s->tile;
    const void *words = t->b;
    if (GCKPTI_X86)
        return 1;
    const int known = s->min_exponent != 0;
    for (int64_t i = 0; !known && i < t->m; i++) {
        const uint32_t e = gckpti_min_exponent(t->a + i * t->a_row, t->blocks * GCKPTI_K_BLOCK);
        s->min_exponent = i == 0 || e < s->min_exponent ? e : s->min_exponent;
    }
    return s->min_exponent + gckpti_min_exponent((const uint16_t *)words,
                                                 t->blocks * GCKPTI_K_BLOCK * t->b_row) >=
           127 + 127 + 14 - 126;
}

/* Computes, element by element, a tile in which a sum may be subnormal. */
static void gckpti_mixed_tile_scalar(const gckpti_mixed_tile *t, int chain)
{
    const int64_t terms = (t->blocks - 1) * GCKPTI_K_BLOCK + t->last;
    const int upper = gckpti_little_endian(); /* odd terms are in the upper halves */
    uint16_t column[GCKPTI_K_BLOCK];
    gckpti_product all;
    memset(&all, 0, sizeof all);
    all.k_period = chain;
    for (int64_t j = 0; j < t->width; j++)
        for (int64_t i = 0; i < t->m; i++) {
            float d = t->from ? t->from[i * t->from_row + j] : 0.0f;
            for (int64_t p = 0; p < terms; p += GCKPTI_K_BLOCK) {
                all.k = gckpti_min(terms - p, GCKPTI_K_BLOCK);
                for (int64_t l = 0; l < all.k; l++)
                    column[l] =
                        (uint16_t)(t->b[(p + l) / 2 * t->b_row + j] >> (l % 2 == upper ? 16 : 0));
                all.a.halves = t->a + i * t->a_row + p, all.b.halves = column;
                all.a.k_stride = all.b.k_stride = 1;
                d = gckpti_mixed_element(&all, 0, 0, d);
            }
            t->c[i * t->c_row + j] = d;
        }
}

/* Returns whether every initial value (n columns of t->from, if any) is 0 or at least 2^-103. */
static int gckpti_starts_never_flush(const gckpti_mixed_tile *t, int64_t n)
{
    int high = 1;
    for (int64_t i = 0; t->from && i < t->m; i++)
        for (int64_t j = 0; j < n; j++) {
            const uint32_t size = gckpti_bits(t->from[i * t->from_row + j]) << 1;
            high = high && (!size || size >> 24 >= 127 + 23 - 126);
        }
    return high;
}

static void gckpti_copy_rows(const float *x, int64_t x_row, float *y, int64_t y_row, int64_t m,
                             int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        memcpy(y + i * y_row, x + i * x_row, (size_t)n * sizeof *y);
}

/* Computes tile t of n columns; in `temp`, to which c is set, if c is NULL or t has fewer rows or
 * columns than tiles need. (A packed a has further rows.) */
static void gckpti_mixed_run_tile(const gckpti_packed_product *s, const gckpti_tile_kernel *kernel,
                                  int exact, gckpti_mixed_tile *t, int64_t n, float *temp)
{
    const gckpti_mixed_tile all = *t;
    const int64_t m = t->m, rows = exact ? gckpti_ceil_to(m, kernel->row_step) : m;
    const int edge = rows > m || n < t->width;
    if (edge || !t->c) {
        t->c = temp, t->c_row = GCKPTI_PANEL, t->c_rows = edge ? 0 : t->c_rows;
        if (edge && all.from && !t->start)
            gckpti_copy_rows(all.from, all.from_row, temp, GCKPTI_PANEL, m, n);
        if (edge && all.from)
            t->from = temp, t->from_row = GCKPTI_PANEL;
    }
    for (int64_t i = 0; t->start && i < m; i++)
        s->kernels->widen(t->start + i * all.bf16_row, t->c + i * t->c_row, n);
    if (t->start)
        t->from = t->c, t->from_row = t->c_row;
    if (!GCKPTI_X86 && s->chain)
        exact = exact && gckpti_starts_never_flush(t, n);
    t->m = rows;
    if (exact)
        kernel->run(t);
    else
        t->width = n, gckpti_mixed_tile_scalar(t, s->chain);
    t->m = m, t->width = n;
    if (edge && all.c)
        gckpti_copy_rows(temp, GCKPTI_PANEL, all.c, all.c_row, m, n);
}

/* Rounds the rows of tile t that no kernel rounded to t->c_bf16, if that is not NULL. */
static void gckpti_mixed_narrow(const gckpti_mixed_kernels *kernels, const gckpti_mixed_tile *t)
{
    for (int64_t i = t->rounded; t->c_bf16 && i < t->m; i++)
        kernels->narrow(t->c + i * t->c_row, t->c_bf16 + i * t->bf16_row, t->width);
}

/* Rounds each tile after the next one has run: vector loads right after tilestored stall. */
GCKPTI_FN void gckpti_mixed_multiply(gckpti_packed_product *s)
{
    const gckpti_mixed_tile *all = &s->tile;
    const gckpti_tile_kernel *kernel = &s->kernels->tiles[s->chain];
    const int exact = gckpti_never_flushes(s);
    const int64_t columns =
        s->n > kernel->columns && s->n % kernel->columns < 32 ? 32 : kernel->columns;
    const unsigned mode = gckpti_ftz_begin();
    float temp[2][32 * GCKPTI_PANEL] GCKPTI_ALIGNED;
    gckpti_mixed_tile last = *all;
    int side = 0;
    last.c_bf16 = NULL;
    for (int64_t j = 0; j < s->n; j += columns)
        for (int64_t r = 0, m; r < all->m; r += m) {
            const int64_t n = gckpti_min(s->n - j, columns);
            gckpti_mixed_tile t = *all;
            t.m = m = gckpti_min(all->m - r, kernel->rows), t.width = gckpti_ceil_to(n, 16);
            t.a += r * t.a_row, t.b += j;
            t.from = t.from ? t.from + r * t.from_row + j : NULL;
            t.start = t.start ? t.start + r * t.bf16_row + j : NULL;
            t.c = t.c ? t.c + r * t.c_row + j : NULL;
            t.c_bf16 = t.c_bf16 ? t.c_bf16 + r * t.bf16_row + j : NULL;
            t.c_rows = all->c_rows - r, t.before = &last;
            gckpti_mixed_run_tile(s, kernel, exact, &t, n, temp[side ^= 1]);
            gckpti_mixed_narrow(s->kernels, &last);
            last = t;
        }
    gckpti_mixed_narrow(s->kernels, &last);
    gckpti_ftz_end(mode);
}

typedef struct {
    gckpti_products base;
    const gckpti_mixed_kernels *kernels;
    int in_place, keeps_partial; /* a is not packed; `partial` has all rows of an item */
    int64_t blocks, panel;       /* blocks per pass; columns of a panel */
    int64_t rows, cols, deepest; /* most rows and columns of an item, most blocks per pass */
} gckpti_mixed_job;

typedef struct {
    gckpti_packed_product packed;
    int64_t matrix, i, p, end, j; /* rows from i on, terms p..end-1, columns from j on */
    float *partial;               /* partial sums of these columns, or NULL */
} gckpti_mixed_panel;

/* Sets where the elements of a panel start, accumulate and end. */
static void gckpti_mixed_set_c(const gckpti_mixed_job *s, gckpti_mixed_panel *w)
{
    const gckpti_product *t = s->base.t;
    gckpti_mixed_tile *tile = &w->packed.tile;
    const int64_t at = (w->matrix * t->m + w->i) * t->n + w->j;
    const int first = w->p == 0, last = w->end == t->k;
    tile->c = t->c ? t->c + at : w->partial, tile->c_row = t->c ? t->n : s->panel;
    tile->c_rows = tile->m;
    tile->c_bf16 = !t->c && last ? t->c_halves + at : NULL, tile->bf16_row = t->n;
    tile->streams = tile->c_bf16 && t->m * t->n > GCKPTI_MIXED_STREAM && t->n % 32 == 0 &&
                    (uintptr_t)tile->c_bf16 % 64 == 0;
    tile->start = first && t->accumulate && !t->c ? t->c_halves + at : NULL;
    tile->from = tile->c, tile->from_row = tile->c_row;
    if (first && !(t->accumulate && t->c))
        tile->from = t->initial && !t->accumulate ? t->initial + w->j : NULL, tile->from_row = 0;
}

static void gckpti_mixed_c_block(const gckpti_products *base, const gckpti_c_block *block,
                                 float *scratch, int64_t floats)
{
    const gckpti_mixed_job *s = (const gckpti_mixed_job *)(const void *)base;
    const gckpti_product *t = base->t;
    gckpti_mixed_panel w;
    memset(&w, 0, sizeof w);
    (void)floats; /* gckpti_mixed_fit chose blocks that fit */
    gckpti_mixed_tile *tile = &w.packed.tile;
    w.packed.kernels = s->kernels, w.packed.chain = gckpti_is_chain(t);
    w.matrix = block->matrix, w.i = block->i0, tile->m = block->i1 - block->i0;
    const int64_t deep = GCKPTI_K_BLOCK / 2 * s->blocks;
    float *partial = scratch;
    scratch += s->keeps_partial ? s->base.rows * s->base.cols : 0;
    void *a = scratch,
         *b = scratch + (s->in_place ? 0 : s->base.rows * deep); /* tiles read past the end of a */
    gckpti_mixed_configure(s->kernels, 1);
    tile->b = (const uint32_t *)b;
    for (; w.p < t->k; w.p = w.end) {
        tile->blocks = 0, w.end = w.p, w.packed.min_exponent = 0;
        for (; tile->blocks < s->blocks && w.end < t->k; tile->blocks++, w.end += tile->last)
            tile->last = gckpti_block_terms(t, w.end);
        const int64_t at_a = w.matrix * t->a.batch_stride + w.i * t->a.stride;
        const gckpti_pack_lanes of_a = { s->kernels, t, &t->a, at_a, tile->m, w.p, tile->blocks };
        tile->a = (const uint16_t *)a, tile->a_row = 2 * deep;
        if (s->in_place)
            tile->a = t->a.halves + at_a + w.p, tile->a_row = t->a.stride;
        else
            s->kernels->pack(&of_a, 1, (uint32_t *)a, deep);
        for (w.j = block->j0; w.j < block->j1; w.j += w.packed.n) {
            const int64_t at_b = w.matrix * t->b.batch_stride + w.j * t->b.stride;
            w.packed.n = gckpti_min(block->j1 - w.j, s->panel);
            const gckpti_pack_lanes of_b = { s->kernels, t,   &t->b,       at_b,
                                             w.packed.n, w.p, tile->blocks };
            tile->b_row = gckpti_ceil_to(w.packed.n, 16);
            w.partial = s->keeps_partial ? partial + s->base.rows * (w.j - block->j0) : NULL;
            s->kernels->pack(&of_b, 0, (uint32_t *)b, tile->b_row);
            gckpti_mixed_set_c(s, &w);
            gckpti_mixed_multiply(&w.packed);
        }
    }
    gckpti_mixed_configure(s->kernels, 0);
}

/* Sets how large an item and a pass may be. If rows of an a in place stay in L2 with all terms, an
 * item has them and all columns, in one pass: it reads b once and keeps no partial sums. */
static void gckpti_mixed_limits(gckpti_mixed_job *s)
{
    const gckpti_product *t = s->base.t;
    const int64_t rows = GCKPTI_MIXED_A / (2 * t->k) / GCKPTI_STRIP * GCKPTI_STRIP;
    const int more = s->in_place || (t->c && t->k > GCKPTI_MIXED_KC);
    s->rows = GCKPTI_MIXED_MC * (1 + more), s->cols = GCKPTI_NC * (t->c ? 2 : 1);
    s->deepest = GCKPTI_MIXED_KC * (1 + s->in_place) / GCKPTI_K_BLOCK;
    if (!s->base.floats)
        s->rows = 64, s->cols = s->panel;
    else if (s->in_place && rows >= GCKPTI_MIXED_MC)
        s->rows = rows, s->cols = t->n, s->deepest = t->k / GCKPTI_K_BLOCK;
}

/* Reduces an item to rows and columns that, with some blocks per pass, fit into `floats`. */
static void gckpti_mixed_fit(gckpti_mixed_job *s, int64_t floats)
{
    const gckpti_product *t = s->base.t;
    int64_t fit, all = 0; /* blocks that fit; blocks of all terms */
    for (int64_t p = 0; p < t->k; p += gckpti_block_terms(t, p))
        all++;
    s->base.rows = gckpti_min(gckpti_ceil_to(s->base.rows, GCKPTI_STRIP), s->rows);
    s->base.cols = gckpti_min(gckpti_ceil_to(s->base.cols, s->panel), s->cols);
    for (s->keeps_partial = 0, fit = -1; fit < 1;) {
        fit = (floats - (s->keeps_partial ? s->base.rows * s->base.cols : 0)) /
              (GCKPTI_K_BLOCK / 2 * (s->panel + (s->in_place ? 0 : s->base.rows)));
        fit = gckpti_min(fit, s->deepest);
        if (!s->keeps_partial && fit < all && !t->c)
            s->keeps_partial = 1, fit = -1;
        else if (fit < 1 && s->base.cols > s->panel)
            s->base.cols -= s->panel;
        else if (fit < 1)
            s->base.rows = gckpti_ceil_to(s->base.rows / 2, GCKPTI_STRIP);
    }
    s->blocks = fit >= all ? all : (all + (all + fit - 1) / fit - 1) / ((all + fit - 1) / fit);
}

/* Splits c as f32 products do. Each item packs its b, so it has more rows if a is in place. */
GCKPTI_FN void gckpti_mixed_fast(const gckpt_call *call, const gckpti_product *t)
{
    gckpti_mixed_job s;
    memset(&s, 0, sizeof s);
    s.base.call = call, s.base.t = t, s.base.run_block = gckpti_mixed_c_block;
    s.kernels = gckpti_kernels_of(call)->mixed;
    s.panel = s.kernels->tiles[gckpti_is_chain(t)].columns;
    s.in_place =
        gckpti_is_in_place(s.kernels, &t->a, t->m) && t->k % GCKPTI_K_BLOCK == 0 && !t->k_period;
    s.base.floats = gckpti_mixed_workspace(t->m, t->n, t->k);
    gckpti_products_split(&s.base);
    gckpti_mixed_limits(&s);
    gckpti_mixed_fit(&s, s.base.floats ? s.base.floats : (int64_t)GCKPTI_STACK_FLOATS);
    s.base.row_blocks = (t->m + s.base.rows - 1) / s.base.rows;
    s.base.col_blocks = (t->n + s.base.cols - 1) / s.base.cols;
    gckpti_run_products(&s.base);
}

/* Compares roundings to bf16 and small products with the plain kernels: of bf16, of f32, and a
 * chain of bf16. Other rounding, order or flushing shows in rows of a: normal numbers; sums through
 * subnormals; the least normal number and half a unit below it (a zero); a chain at -0; an
 * infinity. Products have two blocks, the second of 17 terms. */
GCKPTI_FN int gckpti_mixed_matches(const gckpti_kernels *kernels)
{
    enum { M = 8, N = 16, K = 49, ODD = 9, ALL = (M + N) * K + ODD };
    static const uint16_t numbers[8] = { 0x3f81, 0xbf83, 0x0081, 0x3f00,
                                         0x3dcd, 0x8085, 0x4049, 0xc2f7 };
    static const uint32_t odd[ODD] = { 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0xff800000,
                                       0x7f800001, 0xffffffff, 0x007fffff, 0x80000001 };
    uint16_t a[ALL], narrow[ALL], *const b = a + M * K;
    float x[ALL], c[2][M * N];
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
    for (int i = 0; i < ALL; i++)
        x[i] = i < ALL - ODD ? gckpti_from_bf16(a[i]) * 1.00390625f
                             : gckpti_float(odd[i - (ALL - ODD)]);
    gckpti_to_bf16s(x, a, ALL);
    kernels->mixed->narrow(x, narrow, ALL);
    int same = !memcmp(a, narrow, sizeof a);
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.kernels = kernels, call.threads = 1;
    for (int k = 0; k < 3; k++) {
        const gckpti_operand y = { k == 1 ? x : NULL, k == 1 ? NULL : a, K, 1, 0, NULL };
        gckpti_product t = gckpti_product_of(M, N, K, y, gckpti_operand_at(&y, M * K), c[0]);
        t.k_period = k == 2, t.accumulate = 1;
        for (int i = 0; i < M * N; i++)
            c[0][i] = i / N > 3 ? -0.0f : i % 5 ? 1.0f / (float)(i - 300) : 1e-38f;
        memcpy(c[1], c[0], sizeof c[0]);
        gckpti_mixed_plain(&call, &t);
        t.c = c[1];
        gckpti_mixed_fast(&call, &t);
        same = same && !memcmp(c[0], c[1], sizeof c[0]);
    }
    return same;
}

#if GCKPTI_AMX
/* Returns whether the processor has AMX and Linux lets the process use it (arch_prctl,
 * ARCH_REQ_XCOMP_PERM, once); Linux refuses if, for example, a signal stack is too small. */
GCKPTI_FN int gckpti_cpu_has_amx(void)
{
    unsigned a = 7, b, c = 0, d, high;
    long status;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if ((d >> 22 & 5) != 5) /* the bits of AMX-BF16 and AMX-TILE */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(high) : "c"(0));
    if ((a >> 17 & 3) != 3)
        return 0;
    __asm__ volatile("syscall"
                     : "=a"(status)
                     : "a"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return status == 0;
}
#endif
#endif
