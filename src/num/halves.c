#include "num/num.h"

/* ---- bf16 is the upper half of a float. Conversions round to nearest even; subnormals become
 * zeros of the same sign, NaN stays a (quiet) NaN, as with processors' instructions. ---- */

GCKPTI_DEVICE GCKPTI_FN float gckpti_tiny_fma(float a, float b, float c, float d)
{
    const float scale = 18446744073709551616.0f;
    const uint32_t u = gckpti_bits(d), x = gckpti_bits(a) << 1, y = gckpti_bits(b) << 1;
    if (u << 1 == 0x01000000u &&
        gckpti_bits(gckpti_fma(x < y ? a * scale : a, x < y ? b : b * scale, c * scale)) << 1 >=
            0x41000000u)
        return d;
    return gckpti_float(u & 0x80000000u);
}

/* ---- f16 is IEEE binary16, used for storage only. Conversions round to nearest even, keep
 * subnormals and make NaN canonical; values above 65504 are the caller's error. ---- */
GCKPT_API uint16_t gckpt_to_bf16(float x) { return gckpti_to_bf16(x); }
GCKPT_API float gckpt_from_bf16(uint16_t x) { return gckpti_from_bf16(x); }
