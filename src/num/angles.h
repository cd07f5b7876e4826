#pragma once
#include "num/arithmetic.h"
#include "num/plain_begin.h"
#include "num/vectors.h"
#include "num/formulas.h"
#include "num/plain_end.h"

/* Sine and cosine of a finite x, for initial values and schedules. (The ops sin and cos, in
 * num/formulas.h, came later and return other bits.) */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    gckpti_sincos_of(gckpti_angle_of(x), sine, cosine);
    *sine = gckpti_float(gckpti_bits(*sine) ^ (gckpti_bits(x) & 0x80000000u));
}
