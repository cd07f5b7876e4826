#include "store/own.h"
#include "num/num.h"

/* ---- values: a parameter has none until a call that needs them makes them ---- */

/* Initial values from the even index `at`: fma(uniform, U, fma(normal, N, constant)), a function of
 * seed, name and element (5j). So they are the same whenever they are drawn, and as often. Philox:
 * key = FNV-1a of the seed's 8 bytes, lowest first, and the name; counter = element / 2, 0, 0. N =
 * gckpti_normal(words 0, 1)[element % 2], U = fma(2, u(word 2 + element % 2), -1). */
static void gckpti_draw_values(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t n,
                               float *out)
{
    const gckpt_init *init = &q->init;
    uint64_t key = gckpti_fnv_number(GCKPTI_FNV_START, s->seed);
    key = gckpti_fnv(key, q->p.name, strlen(q->p.name));
    for (int64_t i = 0; i < n; i += 2) {
        float normal[2] = { 0, 0 };
        uint32_t word[4] = { 0, 0, 0, 0 };
        if (init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0)
            gckpti_philox(key, (uint64_t)(at + i) / 2, 0, 0, word);
        if (init->normal < 0 || init->normal > 0)
            gckpti_normal(word[0], word[1], normal);
        for (int j = 0; j < 2 && i + j < n; j++) {
            float uniform = gckpti_fma(2, gckpti_uniform(word[2 + j]), -1);
            out[i + j] = gckpti_fma(init->uniform, uniform,
                                    gckpti_fma(init->normal, normal[j], init->constant));
        }
    }
}

/* As gckpti_draw_values, from any index on. */
static float *gckpti_draw_from(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t *n,
                               float room[GCKPTI_DRAWN])
{
    int64_t odd = at & 1;
    *n = gckpti_min(*n, GCKPTI_DRAWN - odd);
    gckpti_draw_values(s, q, at - odd, *n + odd, room);
    return room + odd;
}

/* Packs and unpacks values that are not made yet. Nothing keeps the scale of a row of I8: it is
 * found anew for each piece. */
static void gckpti_draw_packed(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t *n,
                               float *x)
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

GCKPTI_FN const float *gckpti_values_at(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                        float room[GCKPTI_DRAWN], int64_t *n)
{
    int64_t first, own = gckpti_own(s, q, GCKPTI_VALUES, &first);
    const gckpti_mirror *m = gckpti_mirror_of(s, q);
    *n = q->p.elements - at;
    if (!gckpti_is_made(q) || q->raw) {
        float *x = gckpti_draw_from(s, q, at, n, room);
        if (!q->raw && q->p.storage != GCKPT_STORED_F32)
            gckpti_draw_packed(s, q, at, n, x);
        return x;
    }
    const int away = m && m->newest == GCKPTI_MIRROR;
    at -= first;
    *n = own - at;
    if (q->p.values && !away)
        return q->p.values + at;
    *n = gckpti_min(*n, GCKPTI_DRAWN);
    if (away)
        m->backend->copy_out(m->backend->context, room, m->array[0] + at,
                             (size_t)*n * sizeof *room);
    else
        gckpti_unpack_piece(q, at, *n, room);
    return room;
}

GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who)
{
    size_t bytes = gckpti_array_bytes(s, q, 0);
    if (gckpti_is_made(q))
        return GCKPT_OK;
    gckpti_set_block(q, (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes));
    if (!gckpti_is_made(q))
        return gckpti_error(s, GCKPT_E_MEMORY, "%s: no memory for the values of \"%s\": %z bytes",
                            who, q->p.name, bytes);
    int64_t first, own = gckpti_own(s, q, GCKPTI_VALUES, &first);
    for (; own < gckpti_held(s, q, GCKPTI_VALUES); own++)
        q->p.values[own] = 0; /* of a share that is not the largest */
    q->raw = 1;
    return GCKPT_OK;
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

static void gckpti_packed_draw(const gckpt_store *s, gckpti_param *q)
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
    const gckpt_unpacking *u = &t->b.stored->u;
    const int links = t->b.row != 1; /* what lies side by side */
    const int64_t width = links ? t->k : t->n;
    float w[64];
    for (int64_t i = 0; i < t->m * t->n; i++)
        t->c[i] = t->start ? t->start[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < u->n; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min(64, width - first);
        t->b.stored->packing->read(u, at, n, w);
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

GCKPTI_DATA const gckpti_packing gckpti_packed = { gckpti_packed_unpack, gckpti_unpack_piece,
                                                   gckpti_packed_draw, gckpti_unpack,
                                                   gckpti_fp32_stored };

GCKPTI_FN void gckpti_values_draw(gckpt_store *s)
{
    for (size_t i = 0; i < s->count; i++) {
        gckpti_param *q = &s->params[i];
        int64_t first, own = gckpti_own(s, q, GCKPTI_VALUES, &first);
        if (q->raw && q->p.storage == GCKPT_STORED_F32)
            gckpti_draw_values(s, q, first, own, q->p.values);
        else if (q->raw)
            s->packing->draw(s, q);
        q->raw = 0;
    }
}

GCKPTI_FN void gckpti_values_undo(gckpt_store *s)
{
    for (size_t i = s->count; i-- > 0;) {
        gckpti_param *q = &s->params[i];
        if (q->raw)
            gckpti_values_free(s, q);
        q->raw = 0;
    }
}
