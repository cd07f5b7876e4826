#include "num/random.h"
#include "num/halves.h"
#include "bf16/halves.h"
#include "num/sums.h"
#ifdef GCKPTI_SEPARATE_TU
#ifdef GCKPTI_VECTORS /* kernels/all.c already has the first part */
#include "num/isa.h"
#include "num/vectors.h"
#include "num/formulas.h"
#endif
#endif

/* =================================================================================================
 * >>num: fma, exp, log, pow, tanh, erf, sin, cos, halves, sums, Philox, hash
 *
 * Defines results that could differ between two machines: one fused multiply-add, transcendental
 * functions made of it, one order for every sum, counter-based random numbers, one hash.
 *
 * The bits are equal under any compiler, since no product feeds an addition, except
 *   - inside gckpti_fma, which rounds once by definition;
 *   - where the product is exact (powers of two; two floats multiplied in double), so that
 *     contraction changes nothing. (If a function returns a product, a caller's compiler could
 *     contract it after inlining: such functions use gckpti_mul.)
 * num/formulas.h is compiled for floats and for vectors. It selects by x < a ? a : x, as min and
 * max instructions do, also for NaN.
 * ============================================================================================== */
