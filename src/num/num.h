#include "num/angles.h"
#include "num/random.h"
#include "num/halves.h"
#include "num/sums.h"
#include "num/chains.h"
#ifdef GCKPTI_SEPARATE_TU
#ifdef GCKPTI_VECTORS /* kernels/all.c has read the above */
#include "num/vectors.h"
#include "num/formulas.h"
#endif
#endif

/* =================================================================================================
 * >>num: fma, exp, log, pow, tanh, erf, sin, cos, halves, sums, Philox, hash
 *
 * Everything that could differ between two machines, made the same: one fused multiply-add, our own
 * transcendentals on top of it, one order for every sum, counter-based random numbers, one hash.
 *
 * The rule that keeps the bits equal under any compiler: a product never feeds an addition, except
 *   - inside gckpti_fma, which rounds once by definition;
 *   - where the product is exact (powers of two; two floats multiplied in double), so that it does
 *     not matter whether the compiler contracts it. A value that leaves a function as a product
 *     could be contracted after inlining, so such results go through gckpti_mul.
 * Formulas (num/formulas) are written once, for plain floats and for vectors: selects are x < a ?
 * a : x, which is what min and max instructions do, also for NaN.
 * ============================================================================================== */
