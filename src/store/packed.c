#include "store/own.h"
#include "num/num.h"

#ifndef GCKPT_NO_PACK
/* ---- packed values: BF16, F16, or I8 with a scale for each row, which stand in front of them in a
 * block of the store's ---- */
GCKPTI_FN uint32_t gckpti_peak(uint32_t seen, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = gckpti_bits(x[i]) & 0x7fffffffu;
        seen = u > seen ? u : seen;
    }
    return seen;
}

GCKPTI_FN int gckpti_set_scale(gckpti_param *q, int64_t at, uint32_t peak)
{
    void *scales = gckpti_values_block(q);
    float scale = gckpti_float(peak) / 127;
    ((float *)scales)[at / gckpti_row_length(&q->p)] = scale;
    return scale * 127 <= FLT_MAX; /* not NaN */
}

GCKPTI_FN int gckpti_pack_piece(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    void *to = gckpti_values_block(q) + gckpti_scale_bytes(&q->p);
    if (q->p.storage == GCKPT_STORED_F32)
        return memcpy((float *)to + at, x, (size_t)n * sizeof *x) != NULL;
    if (q->p.storage != GCKPT_STORED_I8)
        return gckpti_to_halves(q->p.storage, x, n, (uint16_t *)to + at);
    float scale = q->p.scales[at / gckpti_row_length(&q->p)];
    for (int64_t i = 0; i < n; i++) { /* adding 3 * 2^22 rounds to a whole number, to even */
        float y = scale > 0 ? x[i] / scale : 0;
        y = (y < -127 ? -127 : y > 127 ? 127 : y) + 12582912.0f;
        ((int8_t *)to)[at + i] = (int8_t)(y - 12582912.0f);
    }
    return 1;
}

GCKPTI_FN gckpt_unpacking gckpti_unpacking_of(const gckpti_param *q)
{
    gckpt_unpacking u;
    u.storage = q->p.storage;
    u.packed = q->p.packed;
    u.scales = q->p.scales;
    u.row = gckpti_row_length(&q->p);
    u.n = q->p.elements;
    u.to = NULL;
    return u;
}

/* The floats that n stored values from element `at` on stand for. */
GCKPTI_FN void gckpti_unpack_piece(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpt_unpacking u = gckpti_unpacking_of(q);
    if (q->p.storage == GCKPT_STORED_F32)
        memcpy(x, q->p.values + at, (size_t)n * sizeof *x);
    else
        gckpti_unpack(&u, at, n, x);
}

/* Packs and unpacks values that are not made yet. Nothing keeps the scale of a row of I8: it is
 * found anew for each piece. */
GCKPTI_FN void gckpti_draw_packed(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                  int64_t *n, float *x)
{
    uint32_t memory[1 + GCKPTI_DRAWN], peak = 0;
    void *block = memory;
    gckpti_param piece = *q;
    const int scaled = q->p.storage == GCKPT_STORED_I8;
    if (scaled) {
        float room[GCKPTI_DRAWN];
        int64_t row = gckpti_row_length(&q->p), begin = at - at % row;
        for (int64_t i = begin, some; i < begin + row; i += some) {
            some = begin + row - i;
            const float *drawn = gckpti_draw_from(s, q, i, &some, room);
            peak = gckpti_peak(peak, drawn, some);
        }
        *n = gckpti_min(*n, begin + row - at);
        piece.p.shape.d[piece.p.shape.n - 1] = *n; /* it is one row */
    }
    piece.p.elements = *n;
    gckpti_set_block(&piece, (unsigned char *)block);
    if (scaled)
        (void)gckpti_set_scale(&piece, 0, peak);
    (void)gckpti_pack_piece(&piece, 0, *n, x);
    gckpti_unpack_piece(&piece, 0, *n, x);
}

/* Room for a row of floats in memory of later rows of I8, which are packed after it; NULL: they are
 * too few. */
static float *gckpti_later_rows(const gckpti_param *to, int64_t end)
{
    unsigned char *at = gckpti_values_block(to) + gckpti_scale_bytes(&to->p) + end;
    void *aligned = at + (sizeof(float) - (uintptr_t)at % sizeof(float)) % sizeof(float);
    int64_t needs = 4 * gckpti_row_length(&to->p) + 3;
    return to->p.elements - end >= needs ? (float *)aligned : NULL;
}

/* Stores what `from` holds, or will, as `to` does, in its memory. Rows of I8 are gone through
 * twice, and no memory is needed besides. 0: a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    float room[GCKPTI_DRAWN], *kept = NULL;
    const float *x;
    int64_t row = gckpti_row_length(&to->p);
    int fits = 1, scaled = to->p.storage == GCKPT_STORED_I8;
    for (int64_t end, begin = 0, n; begin < to->p.elements && fits; begin = end) {
        uint32_t peak = 0;
        end = begin + row;
        kept = scaled ? gckpti_later_rows(to, end) : NULL;
        for (int64_t at = begin; at < end && scaled; at += n) {
            x = gckpti_values_at(s, from, at, room, &n);
            n = gckpti_min(n, end - at);
            peak = gckpti_peak(peak, x, n);
            if (kept)
                memcpy(kept + (at - begin), x, (size_t)n * sizeof *x);
        }
        fits = !scaled || gckpti_set_scale(to, begin, peak);
        if (fits && kept)
            fits = gckpti_pack_piece(to, begin, row, kept);
        for (int64_t at = begin; at < end && fits && !kept; at += n) {
            x = gckpti_values_at(s, from, at, room, &n);
            n = gckpti_min(n, end - at);
            fits = gckpti_pack_piece(to, at, n, x);
        }
    }
    return fits;
}

GCKPTI_FN void gckpti_packed_draw(const gckpt_store *s, gckpti_param *q)
{
    (void)gckpti_values_copy(s, q, q); /* fits: gckpti_pack_start */
}

static void gckpti_unpack_item(void *context, int64_t i)
{
    const gckpt_unpacking *u = (const gckpt_unpacking *)context;
    int64_t at = i * GCKPTI_JOB;
    gckpti_unpack(u, at, gckpti_min(u->n - at, GCKPTI_JOB), u->to + at);
}

GCKPTI_FN void gckpti_packed_unpack(const gckpt_call *call, const gckpt_unpacking *unpacking)
{
    gckpt_unpacking u = *unpacking;
    gckpti_job(call, (u.n + GCKPTI_JOB - 1) / GCKPTI_JOB, gckpti_unpack_item, &u);
}

/* A product whose b is read as it is stored, 64 elements of a row of it at a time. */
GCKPTI_FN void gckpti_fp32_stored(const gckpti_factors *t)
{
    const gckpt_unpacking *u = t->b.stored;
    const int links = t->b.row != 1; /* what lies side by side */
    const int64_t width = links ? t->k : t->n;
    float w[64];
    for (int64_t i = 0; i < t->m * t->n; i++)
        t->c[i] = t->start ? t->start[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < u->n; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min(64, width - first);
        gckpti_unpack(u, at, n, w);
        for (int64_t i = 0; i < t->m; i++) {
            const float *a = t->a.f32 + i * t->a.row + (links ? first : row) * t->a.step;
            float *c = t->c + i * t->n + (links ? row : first);
            if (!links)
                gckpti_link(*a, w, n, c);
            for (int64_t p = 0; links && p < n; p++)
                *c = gckpti_fma(a[p * t->a.step], w[p], *c);
        }
    }
}
#endif
