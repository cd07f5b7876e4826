#pragma once
#include "num/arithmetic.h"
#include "num/math.h"
#include "num/random.h"
#include "num/halves.h"
#include "num/sums.h"
#include "num/optimisers.h"
#include "num/chains.h"

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
 * Polynomials are minimax fits (Lawson's weighted least squares in 40 digits, coefficients rounded
 * to float one after the other, the rest refitted); "fit 2^-28" is the fit's own relative error.
 * A vector version mirrors exp, tanh and erf operation by operation: selects are written as
 * x < a ? a : x, which is what min and max instructions do, also for NaN.
 * ============================================================================================== */
