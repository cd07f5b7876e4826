#pragma once
#include "num/arithmetic.h"
#ifdef GCKPTI_SEPARATE_TU
#pragma push_macro("GCKPTI_ISA")
#undef GCKPTI_ISA
#define GCKPTI_ISA (-1)
#include "num/isa.h"
#include "num/vectors.h"
#include "num/formulas.h"
#include "num/isa_end.h"
#undef GCKPTI_ISA
#pragma pop_macro("GCKPTI_ISA")
#endif

/* Sine and cosine of a finite x, for initial values and schedules. (The ops sin and cos, in
 * num/formulas.h, came later and return other bits.) */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    gckpti_sincos_of(gckpti_angle_of(x), sine, cosine);
    *sine = gckpti_float(gckpti_bits(*sine) ^ (gckpti_bits(x) & 0x80000000u));
}
