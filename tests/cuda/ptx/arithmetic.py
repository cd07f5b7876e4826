"""Arithmetic of a device on arrays of numpy: roundings, special cases, and sums of products of tensor cores."""
import ctypes
import ctypes.util
import numpy as np

UNSIGNED = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {32: np.float32, 64: np.float64}
NAN = {32: np.array(0x7fffffff, np.uint32), 64: np.array(0x7fffffffffffffff, np.uint64)}
EXP2F = ctypes.CDLL(ctypes.util.find_library("m")).exp2f
EXP2F.argtypes, EXP2F.restype = [ctypes.c_float], ctypes.c_float


def round_fma(a, b, c):
    """Returns float32(a b + c). The product is exact in float64; the sum is rounded to odd in float64, then to
    float32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    odd = (error != 0) & np.isfinite(error) & np.isfinite(total)
    if odd.any():
        bits = total.view(np.int64)
        odd &= (bits & 1) == 0
        away = (error > 0) == (total > 0)
        total = np.where(odd, bits + np.where(away, 1, -1), bits).view(np.float64)
    return total.astype(np.float32)


def exact_products(a, b):
    """Returns whether float32 holds each product of a finite bf16 in `a` and one in `b` exactly: the product of two
    significands of 8 bits fits, unless the product is too large or has too small an exponent."""
    a, b = (np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64) for x in (a, b))
    return not len(a) or not len(b) or (a.max() * b.max() < 2.0 ** 127 and a.min() * b.min() >= 2.0 ** -126)


def add_products(a, b, c):
    """Returns c + a b for matrices of bf16 in float32, a (.., m, k) and b (.., k, n): for each element a sequential fma
    over k."""
    exact = exact_products(a, b)
    for k in range(a.shape[-1]):
        x, y = a[..., k:k + 1], b[..., k:k + 1, :]
        c = c + x * y if exact else round_fma(x, y, c)  # if the product is exact, fma rounds as the sum does
    return c


def flushed(x):
    """Returns x with subnormals replaced by 0."""
    return np.where(np.abs(x) < np.float32(2.0 ** -126), np.copysign(np.float32(0), x), x)


def exp2_approx(x):
    """Returns 2^x. Subnormal inputs count as 0 (result 1); subnormal results become 0."""
    return flushed(np.fromiter(map(EXP2F, x.tolist()), np.float32, len(x)))


def to_bf16(x):
    """Returns the bits of x rounded to bf16, with ties to even. NaN becomes 0x7fff."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7fff, rounded).astype(np.uint32)


def of_bf16(bits):
    """Returns the float32 values of bf16 given by their bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def greater(a, b, least):
    """Returns min (if `least`) or max of a and b: a number is preferred to NaN, and -0 is less than +0."""
    both = a == b
    out = (np.fmin if least else np.fmax)(a, b)
    bits = UNSIGNED[8 * a.dtype.itemsize]
    x, y = a.view(bits), b.view(bits)
    return np.where(both, x | y if least else x & y, out.view(bits)).view(a.dtype)


def divided(a, b, rest):
    """Returns the quotient, rounded towards 0, or (if `rest`) the remainder."""
    if a.dtype.kind == "u":
        return a % b if rest else a // b
    bits = UNSIGNED[8 * a.dtype.itemsize]
    x, y = np.abs(a).view(bits), np.abs(b).view(bits)
    out = (x % y if rest else x // y).view(a.dtype)
    return np.where((a < 0) if rest else (a < 0) != (b < 0), -out, out)
