#ifndef GCKPT_NO_QUANT
#include "store/store.h"

GCKPTI_FN int gckpti_values_copy(const gckpt_store *s, const gckpti_param *from, gckpti_param *to)
{
    float buf[GCKPTI_CHUNK], scale = 1;
    const int64_t row = gckpti_row_length(&to->p);
    int fits = 1;
    for (int64_t at = 0, n; at < to->p.elements && fits; at += n) {
        uint32_t peak = 0;
        for (int64_t i = at, end = at + row; to->p.scales && at % row == 0 && i < end; i += n) {
            const float *x = gckpti_floats_at(s, from, GCKPTI_VALUES, i, buf, &n);
            n = gckpti_min(n, end - i);
            peak = gckpti_max_abs(peak, x, n);
        }
        scale = at % row ? scale : gckpti_row_scale(peak);
        const float *x = gckpti_floats_at(s, from, GCKPTI_VALUES, at, buf, &n);
        n = gckpti_min(n, row - at % row);
        fits = gckpti_quantise_at(to, at, n, x, scale);
    }
    return fits;
}
#endif
