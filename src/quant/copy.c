#ifndef GCKPT_NO_QUANT
#include "store/internal.h"

/* Returns the bits of the greatest magnitude in the row; copies the row to row_buf unless NULL. */
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
#endif
