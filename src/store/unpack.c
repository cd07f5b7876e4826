#include "store/own.h"
#include "num/num.h"

#if !defined(GCKPT_NO_PACK) || !defined(GCKPT_NO_FILES)
/* ---- floats to BF16 and F16, and from these and I8: of files, and of what is packed ---- */
GCKPTI_FN int gckpti_to_halves(gckpt_storage storage, const float *x, int64_t n, uint16_t *half)
{
    int large = 0;
    for (int64_t i = 0; i < n && storage == GCKPT_STORED_BF16; i++)
        half[i] = gckpti_to_bf16(x[i]);
    for (int64_t i = 0; i < n && storage == GCKPT_STORED_F16; i++) {
        large |= x[i] > 65504 || x[i] < -65504;
        half[i] = gckpti_to_f16(x[i]);
    }
    return !large;
}

GCKPTI_INLINE uint16_t gckpti_half_at(const void *from, int k)
{
    uint16_t half;
    memcpy(&half, (const unsigned char *)from + 2 * k, sizeof half);
    return half;
}

/* 16 packed values: a count that compilers make vectors of, since it is fixed. */
static void gckpti_unpack_16(gckpt_storage storage, const void *from, float scale, float *to)
{
    float y[16];
    for (int k = 0; k < 16 && storage == GCKPT_STORED_BF16; k++)
        y[k] = gckpti_from_bf16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORED_F16; k++)
        y[k] = gckpti_from_f16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORED_I8; k++)
        y[k] = (float)((const int8_t *)from)[k] * scale;
    memcpy(to, y, sizeof y);
}

GCKPTI_FN void gckpti_unpack(const gckpt_unpacking *u, int64_t at, int64_t n, float *x)
{
    const int64_t each = gckpti_storages[u->storage].bytes;
    const unsigned char *from = (const unsigned char *)u->packed + at * each;
    uint16_t last[16] = { 0 };
    float y[16];
    for (int64_t row; n > 0; n -= row, at += row) {
        float scale = u->scales ? u->scales[at / u->row] : 1;
        row = gckpti_min(n, u->row - at % u->row);
        int64_t i = 0;
        for (; i + 16 <= row; i += 16, from += 16 * each)
            gckpti_unpack_16(u->storage, from, scale, x + i);
        memcpy(last, from, (size_t)((row - i) * each));
        gckpti_unpack_16(u->storage, last, scale, y);
        memcpy(x + i, y, (size_t)(row - i) * sizeof *x);
        from += (row - i) * each;
        x += row;
    }
}
#endif
