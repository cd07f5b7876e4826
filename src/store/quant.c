#include "store/internal.h"
#include "num/num.h"

#ifndef GCKPT_NO_QUANT
/* ---- quantised values: BF16; F16; I8 with a scale per row, all before the values in an owned
 * block; I4 with a scale in each block of values ---- */

/* Returns x / scale, rounded to nearest even and clamped to least..most. */
GCKPTI_INLINE float gckpti_quotient(float x, float scale, float least, float most)
{
    const float q = scale < 0 || scale > 0 ? x / scale : 0;
    return (q < least ? least : q > most ? most : q) + 12582912.0f - 12582912.0f; /* 3 * 2^22 */
}

/* Returns the sum of the squares of a block's errors x - y * scale, added by halves. The squares
 * are exact in double, and so are the products: y are small integers, the scale has 11 bits. */
static double gckpti_quant_error(const float *x, const float *y, float scale)
{
    double e[GCKPTI_INT4_BLOCK];
    for (int i = 0; i < GCKPTI_INT4_BLOCK; i++) {
        const double error = (double)(x[i] - y[i] * scale);
        e[i] = error * error;
    }
    for (int half = GCKPTI_INT4_BLOCK / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            e[i] += e[i + half];
    return e[0];
}

/* Quantises a block to I4 (manual, 5n); returns 0 if no scale is large enough. */
static int gckpti_quantise_int4(const float *x, unsigned char *to)
{
    static const float divisors[] = { -8, -7.625f, -8.25f, -8.5f, -8.75f, -9 };
    float y[GCKPTI_INT4_BLOCK], extreme = 0;
    double best = 0;
    for (int i = 0; i < GCKPTI_INT4_BLOCK; i++) {
        if (!(gckpti_fabs((double)x[i]) <= (double)GCKPTI_INT4_MAX))
            return 0;
        extreme = (x[i] < 0 ? -x[i] : x[i]) > (extreme < 0 ? -extreme : extreme) ? x[i] : extreme;
    }
    for (size_t k = 0; k < sizeof divisors / sizeof *divisors; k++) {
        const float unrounded = extreme / divisors[k];
        if (unrounded < -65504 || unrounded > 65504)
            continue;
        const unsigned half = gckpti_to_f16(unrounded), bits = half & 0x7fff ? half : 0;
        const float scale = gckpti_from_f16((uint16_t)bits);
        for (int i = 0; i < GCKPTI_INT4_BLOCK; i++)
            y[i] = gckpti_quotient(x[i], scale, -8, 7);
        const double error = gckpti_quant_error(x, y, scale);
        if (k > 0 && !(error < best))
            continue;
        best = error;
        to[0] = (unsigned char)(bits & 255), to[1] = (unsigned char)(bits >> 8);
        for (int i = 0; i < GCKPTI_INT4_BLOCK / 2; i++)
            to[2 + i] = (unsigned char)((int)y[i] + 16 * (int)y[i + GCKPTI_INT4_BLOCK / 2] + 136);
    }
    return 1;
}

/* Quantises n floats (I8: by `scale`). Returns 0 if F16 or I4 cannot hold one. */
static int gckpti_quantise(gckpt_storage storage, float scale, const float *x, int64_t n, void *to)
{
    if (storage == GCKPT_STORAGE_F32)
        return memcpy(to, x, (size_t)n * sizeof *x) != NULL;
    if (storage < GCKPT_STORAGE_I8)
        return gckpti_to_halves(storage, x, n, (uint16_t *)to);
    int fits = 1;
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_I4; i += GCKPTI_INT4_BLOCK)
        fits &=
            gckpti_quantise_int4(x + i, (unsigned char *)to + gckpti_file_count((int)storage, i));
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_I8; i++)
        ((int8_t *)to)[i] = (int8_t)gckpti_quotient(x[i], scale, -127, 127);
    return fits;
}

/* Quantises n floats into q's memory from element `at`. */
static int gckpti_quantise_at(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    unsigned char *to = gckpti_values_block(q) + gckpti_scale_bytes(&q->p);
    const float scale = q->p.scales ? q->p.scales[at / gckpti_row_length(&q->p)] : 1;
    return gckpti_quantise(q->p.storage, scale, x, n,
                           to + gckpti_storage_bytes((int)q->p.storage, at));
}

/* Returns the maximum of max_bits and of the bits of |x| for n floats (NaN has the greatest). */
static uint32_t gckpti_max_abs(uint32_t max_bits, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = gckpti_bits(x[i]) & 0x7fffffffu;
        max_bits = u > max_bits ? u : max_bits;
    }
    return max_bits;
}

static float gckpti_row_scale(uint32_t peak) { return gckpti_float(peak) / 127; }

/* I8: sets the scale of the row at element `at` for the peak; returns 0 if no finite scale fits. */
static int gckpti_set_scale(gckpti_param *q, int64_t at, uint32_t peak)
{
    void *scales = gckpti_values_block(q);
    const float scale = ((float *)scales)[at / gckpti_row_length(&q->p)] = gckpti_row_scale(peak);
    return scale * 127 <= FLT_MAX; /* false for NaN */
}

GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    return (q->p.storage != GCKPT_STORAGE_I8 || gckpti_set_scale(q, at, gckpti_max_abs(0, x, n))) &&
           gckpti_quantise_at(q, at, n, x);
}

/* Returns the bits of the row's greatest magnitude; copies the row to row_buf (NULL: nowhere). */
static uint32_t gckpti_row_max_abs(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                   int64_t row, float *row_buf)
{
    float buf[GCKPTI_CHUNK];
    uint32_t peak = 0;
    for (int64_t end = at + row, n; at < end; at += n) {
        const float *x = gckpti_values_at(s, q, at, buf, &n);
        n = gckpti_min(n, end - at);
        peak = gckpti_max_abs(peak, x, n);
        if (row_buf)
            memcpy(row_buf + row - (end - at), x, (size_t)n * sizeof *x);
    }
    return peak;
}

/* Rounds initial values in x as q's storage does (I4: whole blocks; I8: a scale for each call). */
GCKPTI_FN void gckpti_init_quantised(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     int64_t *n, float *x)
{
    uint32_t quantised[GCKPTI_CHUNK];
    float scale = 1;
    gckpti_param initial = *q;
    initial.uninitialised = 1;
    if (q->p.storage == GCKPT_STORAGE_I8) {
        const int64_t row = gckpti_row_length(&q->p), in_row = at % row;
        *n = gckpti_min(*n, row - in_row);
        scale = gckpti_row_scale(gckpti_row_max_abs(s, &initial, at - in_row, row, NULL));
    }
    const gckpt_dequantisation u = { q->p.storage, quantised, &scale, *n, *n, NULL };
    (void)gckpti_quantise(q->p.storage, scale, x, *n, quantised);
    gckpti_dequantise(&u, 0, *n, x);
}

/* Returns memory for a row of floats in I8 rows to be quantised later; NULL if it is too small. */
static float *gckpti_spare_row(const gckpti_param *to, int64_t end)
{
    unsigned char *at = gckpti_values_block(to) + gckpti_scale_bytes(&to->p) + end;
    void *aligned = at + (0 - (uintptr_t)at) % sizeof(float);
    return to->p.elements - end >= 4 * gckpti_row_length(&to->p) + 3 ? (float *)aligned : NULL;
}

/* Quantises the values of `from` (or its initial values, if it has none) into the memory of `to`.
 * Reads each row of I8 twice, first to find its scale. Computes initial values once, except in
 * small builds and for the last rows. Returns 0 if a value does not fit. */
GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    float buf[GCKPTI_CHUNK];
    const int64_t row = gckpti_row_length(&to->p);
    const int scaled = to->p.storage == GCKPT_STORAGE_I8;
    int fits = 1;
    for (int64_t at = 0, n; at < to->p.elements && fits; at += n) {
        float *row_buf = NULL;
        if (!GCKPTI_IS_SMALL && scaled && at % row == 0)
            row_buf = gckpti_spare_row(to, at + row);
        if (scaled && at % row == 0)
            fits = gckpti_set_scale(to, at, gckpti_row_max_abs(s, from, at, row, row_buf));
        const float *x = row_buf ? (n = row, row_buf) : gckpti_values_at(s, from, at, buf, &n);
        n = gckpti_min(n, row - at % row);
        fits = fits && gckpti_quantise_at(to, at, n, x);
    }
    return fits;
}

static void gckpti_dequantise_item(void *context, int64_t i, int64_t worker)
{
    const gckpt_dequantisation *u = (const gckpt_dequantisation *)context;
    int64_t at = i * GCKPTI_GRAIN_SIZE;
    (void)worker;
    gckpti_dequantise(u, at, gckpti_min(u->n - at, GCKPTI_GRAIN_SIZE), u->to + at);
}

GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant)
{
    gckpt_dequantisation u = *quant;
    gckpt_parallel(call, GCKPTI_GRAINS(u.n), gckpti_dequantise_item, &u);
}

/* Computes a product; dequantises parts of b's rows. The bits do not depend on the parts' size. */
GCKPTI_FN void gckpti_fp32_quant(const gckpti_product *t)
{
    enum { CHUNK = 64 >> GCKPTI_IS_SMALL };
    const gckpt_dequantisation *u = t->b.quant;
    const int along_k = t->b.stride != 1; /* nonzero if k is the contiguous axis of b */
    const int64_t width = along_k ? t->k : t->n;
    float w[CHUNK];
    for (int64_t i = 0; i < t->m * t->n && !t->accumulate; i++)
        t->c[i] = t->initial ? t->initial[i % t->n] : 0.0f;
    for (int64_t at = 0, n; at < t->n * t->k; at += n) {
        const int64_t row = at / width, first = at % width;
        n = gckpti_min((int)CHUNK, width - first);
        gckpti_dequantise(u, at, n, w);
        for (int64_t i = 0; i < t->m; i++) {
            const float *a = t->a.f32 + i * t->a.stride + (along_k ? first : row) * t->a.k_stride;
            float *c = t->c + i * t->n + (along_k ? row : first);
            if (!along_k)
                gckpti_axpy(*a, w, n, c);
            for (int64_t p = 0; along_k && p < n; p++)
                *c = gckpti_fma(a[p * t->a.k_stride], w[p], *c);
        }
    }
}
/* Allocates q's new block. Checks that initial values fit (those of N(0, 1) are below 6). */
static gckpt_result gckpti_quantise_begin(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter target = q->p;
    target.storage = (gckpt_storage)q->new_storage;
    const char *name = gckpti_storage_name(target.storage);
    if (!q->p.frozen)
        return gckpti_error(s, GCKPT_E_ARG,
                            "quantise: \"%s\" is trainable: only frozen parameters can be stored "
                            "as %s (gckpt_store_freeze)",
                            q->p.name, name);
    if (gckpti_has_values(q) && s->shard == GCKPT_SHARD_VALUES &&
        gckpti_is_sharded(gckpti_array_shard(s, q, 0)))
        return gckpti_error(
            s, GCKPT_E_ARG,
            "quantise: \"%s\" is sharded as F32, and whole when quantised: with "
            "GCKPT_SHARD_VALUES quantise it before its values are made",
            q->p.name);
    if (!gckpti_has_values(q)) {
        const double limit = target.storage == GCKPT_STORAGE_F16  ? 65504
                             : target.storage == GCKPT_STORAGE_I4 ? (double)GCKPTI_INT4_MAX
                                                                  : 3e38;
        const double peak = 6 * gckpti_fabs((double)q->init.normal) +
                            gckpti_fabs((double)q->init.uniform) +
                            gckpti_fabs((double)q->init.constant);
        if (peak <= limit || target.storage <= GCKPT_STORAGE_BF16)
            return GCKPT_OK;
        return gckpti_error(s, GCKPT_E_DATA,
                            "quantise: initial values of \"%s\" may be %g; %s holds up to %g",
                            q->p.name, peak, name, limit);
    }
    size_t bytes = gckpti_values_bytes(&target);
    if (!q->external || (size_t)target.elements <= SIZE_MAX / 24 - s->elements)
        q->new_block = (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes);
    if (q->new_block)
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_MEMORY,
                        "quantise: no memory for the %z bytes of \"%s\" as %s, in addition to its "
                        "present values (before these are made, it needs no more)",
                        bytes, q->p.name, name);
}

/* Quantises the values, if q has any, into the new block. */
static gckpt_result gckpti_quantise_values(gckpt_store *s, const gckpti_param *q)
{
    gckpti_param to = *q;
    to.p.storage = (gckpt_storage)q->new_storage;
    gckpti_set_block(&to, q->new_block);
    if (!q->new_block || gckpti_values_copy(s, q, &to))
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_DATA, "quantise: \"%s\" has values %s", q->p.name,
                        to.p.storage == GCKPT_STORAGE_F16
                            ? "beyond 65504, the greatest of F16; BF16 holds them"
                        : to.p.storage == GCKPT_STORAGE_I4
                            ? "beyond 524032, or not finite; I4 has no scale for their block, "
                              "BF16 holds them"
                            : "that are not finite; I8 has no scale for their row");
}

/* Replaces q's values by the new block and frees its optimiser state. Cannot fail. */
static void gckpti_quantise_commit(gckpt_store *s, gckpti_param *q)
{
    gckpti_free_mirror(s, q);
    gckpti_state_shrink(s, q, 0);
    gckpti_mark_changed(s, q, GCKPTI_HOST);
    q->optimiser = 0;
    q->updates = 0;
    if (gckpti_has_values(q) && !q->external)
        gckpti_values_free(s, q);
    s->elements += q->external ? (size_t)q->p.elements : 0;
    q->external = q->locked = 0;
    q->p.storage = (gckpt_storage)q->new_storage;
    gckpti_set_block(q, q->new_block);
    q->new_block = NULL;
}

/* Frees the new block after an error. */
static void gckpti_quantise_undo(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter target = q->p;
    target.storage = (gckpt_storage)q->new_storage;
    gckpti_delete(&s->memory, q->new_block, gckpti_values_bytes(&target), 1);
    q->new_block = NULL;
}

GCKPT_API gckpt_result gckpt_store_quantise(gckpt_store *store, const char *pattern,
                                            gckpt_storage storage)
{
    gckpt_result result;
    if ((unsigned)storage > GCKPT_STORAGE_I4)
        return gckpti_error(store, GCKPT_E_ARG, "quantise: %i is no gckpt_storage", (int)storage);
    for (size_t i = 0; store && i < store->count; i++)
        store->params[i].new_storage = (unsigned char)store->params[i].p.storage;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        const gckpt_storage fallback = q->p.shape.n < 2 ? GCKPT_STORAGE_F32 : GCKPT_STORAGE_I8;
        q->new_storage =
            (unsigned char)(gckpti_can_store(storage, &q->p.shape) ? storage : fallback);
    }
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        if (store->params[i].new_storage != store->params[i].p.storage)
            result = gckpti_quantise_begin(store, &store->params[i]);
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        result = gckpti_quantise_values(store, &store->params[i]);
    for (size_t i = store->count; i-- > 0;) { /* newest first, as a block needs it */
        gckpti_param *q = &store->params[i];
        if (result != GCKPT_OK)
            gckpti_quantise_undo(store, q);
        else if (q->new_storage != q->p.storage)
            gckpti_quantise_commit(store, q);
    }
    store->quantise_count += result == GCKPT_OK;
    if (result == GCKPT_E_MEMORY)
        gckpti_hint_block(store, "store", &store->memory, 0);
    return result;
}

GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values, const float *scales)
{
    gckpti_param *q = NULL;
    const char *problem = NULL;
    if (storage <= GCKPT_STORAGE_F32 || storage > GCKPT_STORAGE_I4)
        problem = "storage must be BF16, F16, I8 or I4; for floats there is gckpt_store_external";
    else if (storage == GCKPT_STORAGE_I8 && (!scales || shape.n < 2))
        problem = "I8 needs two axes or more, and a scale for each row";
    else if (storage == GCKPT_STORAGE_I4 &&
             (scales || (gckpti_shape_fits(&shape) && !gckpti_can_store(storage, &shape))))
        problem = "I4 needs two axes or more, the last a multiple of 32, and no scales except "
                  "those of its blocks";
    else if ((uintptr_t)values % (unsigned)gckpti_storages[storage].bytes ||
             (uintptr_t)scales % sizeof(float))
        problem = "values or scales are not aligned to their size; copy them to memory that is";
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "external parameter \"%s\": %s", name ? name : "",
                            problem);
    gckpt_result result = gckpti_add_external(store, name, &shape, values, 0, &q);
    if (result != GCKPT_OK)
        return result;
    q->p.storage = storage;
    q->p.quantised = values;
    q->p.scales = scales;
    return result;
}
#endif
