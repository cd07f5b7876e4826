"""exp, log, pow, tanh, erf, sin, cos and the angles of rotary, from docs/functions.txt (docs/numerics.md, b2)."""
import numpy as np
from contract import F, D, f32, fma, philox, rounded

ROUND = F(12582912)


def h(*texts):
    """Returns binary32 numbers from hexadecimal texts."""
    return [F(float.fromhex(t)) for t in texts]


LOG2E, LN2_HIGH, LN2_LOW = h("0x1.715476p+0", "0x1.62e43p-1", "-0x1.05c61p-29")
EXP = h("0x1p+0", "0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558b8p-5", "0x1.1239aap-7", "0x1.6a4508p-10")
TANH = h("-0x1.55553cp-2", "0x1.110be4p-3", "-0x1.b9623ap-5", "0x1.6009a6p-6", "-0x1.045ff4p-7", "0x1.2da01ep-9",
         "-0x1.77cd56p-12")
ERF = h("0x1.06eba8p-3", "-0x1.81273ep-2", "0x1.ce2ce6p-4", "-0x1.b7f71ap-6", "0x1.53f224p-8", "-0x1.a3515ep-11",
        "0x1.4771fcp-14")
ERFC = h("0x1.20f21cp+0", "0x1.451acp-1", "0x1.b4596p-4", "-0x1.89605p-6", "0x1.ec7b3p-9", "-0x1.6f9572p-12",
         "0x1.d45f7p-17")
LOG = h("0x1.555556p-2", "-0x1.ffff18p-3", "0x1.9997eep-3", "-0x1.55978cp-3", "0x1.24eb6ep-3", "-0x1.f3b02cp-4",
        "0x1.b91efap-4", "-0x1.06c2bap-3", "0x1.e9d18ap-4")
LOG_HIGH, LOG_LOW = h("0x1.63p-1", "-0x1.bd0106p-13")
POW = h("-0x1.ccccd6p+0", "-0x1.a51f44p-5", "-0x1.c0904ep-8")
SIN = h("-0x1.555556p-3", "0x1.111174p-7", "-0x1.a0594cp-13", "0x1.7c2842p-19")
COS = h("0x1.55554ap-5", "-0x1.6c0c26p-10", "0x1.99e70ap-16")
TWO_OVER_PI, HALF_PI, HALF_PI_2, HALF_PI_3 = h("0x1.45f306p-1", "0x1.921fb6p+0", "0x1.777a5cp-25", "0x1.ee59dap-50")
ROOT_HALF, ROOT_2_PI = h("0x1.6a09e6p-1", "0x1.988454p-2")
BITS_OF_2_OVER_PI = 0xa2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163ab  # 224 bits; the first weighs 1/2


def horner(x, c):
    p = c[-1]
    for k in c[-2::-1]:
        p = fma(p, x, k)
    return p


def reduced(x):
    """Returns n, r and p with exp(x) = 2^n (1 + r p)."""
    n = fma(x, LOG2E, ROUND) - ROUND
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    return n, r, horner(r, EXP)


def times_power(x, n):
    """Returns x 2^n, rounded once."""
    return np.ldexp(x.astype(D), np.where(np.isnan(n), 0, n).astype(int)).astype(F)


def exp(x):
    n, r, p = reduced(np.minimum(F(89), np.maximum(F(-104), f32(x))))
    return times_power(fma(r, p, F(1)), n)


def less_than_1(x):
    """Returns 1 - exp(x) for x from -20 to 0 (expm)."""
    n, r, p = reduced(x)
    s = times_power(np.ones_like(n), n)
    return fma(-(r * s), p, F(1) - s)


def tanh(x):
    x = f32(x)
    a = np.abs(x)
    z = a * a
    n, r, p = reduced(np.minimum(F(20), a + a))
    s = times_power(np.ones_like(n), n)
    y = np.where(a < 1, fma(a * z, horner(z, TANH), a), F(1) - F(2) / fma(r * s, p, s + F(1)))
    return np.copysign(y, x)


def erf(x):
    x = f32(x)
    a = np.abs(x)
    b = np.minimum(F(4), a)
    y = np.where(a < 1, fma(a, horner(a * a, ERF), a), less_than_1(rounded(horner(b, ERFC), -b)))
    return np.copysign(y, x)


def split(x):
    """Returns m and n with x = m 2^n and 2/3 <= m < 4/3."""
    m, n = np.frexp(x)
    low = m < F(2) / F(3)
    return np.where(low, m + m, m), (n - low).astype(F)


def log(x):
    x = f32(x)
    m, n = split(x)
    f = m - F(1)
    f2 = f * f
    high = fma(n, LOG_HIGH, f)
    low = fma(F(-0.5), f2, fma(n, LOG_LOW, f - (high - n * LOG_HIGH)))
    y = high + fma(f * f2, horner(f, LOG), low)
    y = np.where(x > 0, y, np.where(x < 0, F(np.nan), F(-np.inf)))
    return np.where(x < np.inf, y, x)


def log1p(x):
    u = F(1) + x
    return np.where(u > 1, rounded(log(u), x / (u - F(1))), x)


def general_power(x, e):
    x = f32(x)
    if e == 0:
        return np.ones_like(x)
    if np.isnan(e):
        return np.where(x == 1, x, e)
    odd = 1 if abs(e) < 2 ** 24 and e == int(e) and int(e) % 2 else 0
    whole = odd or np.isinf(e) or abs(e) >= 2 ** 24 or e == int(e)
    near = D(min(max(float(e), float(F(-1e30))), float(F(1e30))))
    a = np.abs(x)
    m, n = (v.astype(D) for v in split(a))
    s = 2 * (m - 1) / (m + 1)
    u = (s * s).astype(F)
    d = fma(fma(POW[2], u, POW[1]), u, POW[0]).astype(D)
    l = s + s * s * s / (u.astype(D) * d + 12)
    l = n * D(LN2_HIGH) + (l + n * D(LN2_LOW))
    high = l.astype(F).astype(D)
    low = (l - high).astype(F).astype(D)
    l = near * high + near * low
    u = l.astype(F)
    k = fma(u, LOG2E, ROUND) - ROUND
    r = ((l - k.astype(D) * D(LN2_HIGH)) - k.astype(D) * D(LN2_LOW)).astype(F)
    y = fma(r, horner(r, EXP), F(1))
    y = times_power(y, np.clip(k, -400, 400))
    y = np.where(u < -104, F(0), np.where(u > 89, F(np.inf), y))
    zero, large = (F(0), F(np.inf)) if e > 0 else (F(np.inf), F(0))
    y = np.where(a < np.inf, np.where(a > 0, y, zero), large)
    if odd:
        y = np.copysign(y, x)
    if not whole:
        y = np.where((x < 0) & (x > -np.inf), F(np.nan), y)
    return np.where(np.isnan(x), x, y)


def sine(high, low):
    z = high * high
    return high + fma(high * z, horner(z, SIN), fma(F(-0.5) * z, low, low))


def cosine(high, low):
    z = high * high
    c = fma(F(-0.5), z, F(1))
    e = (F(1) - c) + F(-0.5) * z
    e = fma(-high, low, fma(F(-0.5), fma(high, high, -z), e))
    return c + fma(z * z, horner(z, COS), e)


def waves(quadrant, high, low):
    """Returns sine and cosine of quadrant pi/2 + high + low."""
    s, c = sine(high, low), cosine(high, low)
    odd = (quadrant & 1) == 1
    flip = np.where(quadrant & 2, F(-1), F(1))
    return np.where(odd, c, s) * flip, np.where(odd, -s, c) * flip


def angle_of(p):
    """Returns quadrant, high and low of an angle p, which is a whole number of 2^-64 turns."""
    q = ((p + 2 ** 61) % 2 ** 64) >> 62
    p = (p - (q << 62)) % 2 ** 64
    p = D(p - 2 ** 64 if p >> 63 else p)  # rounded once to binary64
    a = F(p)
    b = F(p - D(a))
    by, rest = h("0x1.921fb6p-62", "-0x1.777a5cp-87")
    high = rounded(a, by)
    return q, high, fma(b, by, fma(a, rest, fma(a, by, -high)))


def far_angle(x):
    """Returns quadrant, high and low of a number above 2^17, with 96 bits of 2 / pi."""
    m, n = np.frexp(x)
    m, n = int(m * 2 ** 24), int(n) - 24  # x = m 2^n
    v = (BITS_OF_2_OVER_PI << 32) >> (256 - 96 - (n - 2))  # 96 bits, from the bit of weight 2^(1 - n) on
    v &= 2 ** 96 - 1
    v0, v1, v2 = v >> 64, (v >> 32) & 0xffffffff, v & 0xffffffff
    return angle_of(((m * v0 << 32) + m * v1 + (m * v2 >> 32)) % 2 ** 64)


def wave(x, quarter):
    """Returns sin(x + quarter pi/2)."""
    x = f32(x)
    a = np.abs(x)
    n = fma(a, TWO_OVER_PI, ROUND) - ROUND
    rest = fma(n, -HALF_PI, a)
    w = rounded(n, HALF_PI_2)
    high = rest + w
    b = high - rest
    low = (rest - (high - b)) + (w - b)
    low = fma(n, HALF_PI_3, low + fma(n, HALF_PI_2, -w))
    q = np.where(np.isfinite(n), n, 0).astype(np.int64) + quarter
    y = waves(q, high, low)[0]
    far = np.argwhere((a > 131072) & np.isfinite(a))
    for at in map(tuple, far):
        t, s, l = far_angle(a[at])
        y[at] = waves(np.asarray(t + quarter), s, l)[0]
    return np.copysign(F(1), x) * y if quarter % 2 == 0 else y


def rotary_angle(p):
    """Like angle_of, but for rotary: high is computed from two parts of p, and low is 0."""
    q = ((p + 2 ** 61) % 2 ** 64) >> 62
    p = (p - (q << 62)) % 2 ** 64
    size = 2 ** 64 - p if p >> 63 else p
    upper, lower = h("0x1.921fb6p-24", "0x1.921fb6p-48")
    high = fma(F(size >> 38), upper, rounded(F(size >> 14 & 0xffffff), lower))
    return np.asarray(q), -high if p >> 63 else high, F(0)


def rotary_table(t, half, base, first, given, scale):
    """Returns cosines and sines (t,half) of t positions, from position `first` on."""
    turn = D(2935890503282001226)  # 2^64 / (2 pi)
    counts = []
    if given is not None:
        counts = [turn * D(f) for f in given]
    else:
        ratio, target = D(general_power(f32([base]), F(-1) / F(half))[0]), D(1) / D(base)
        for _ in range(3):
            p = powers(ratio, half)
            ratio = ratio - ratio * (p - target) / (D(half) * p)
        for i in range(half):
            counts.append(turn if i == 0 else counts[-1] * ratio)
    c, s = np.zeros((t, half), F), np.zeros((t, half), F)
    for i, count in enumerate(counts):
        step = int(count) % 2 ** 64
        for k in range(t):
            sin_, cos_ = waves(*rotary_angle((first + k) * step % 2 ** 64))
            c[k, i], s[k, i] = rounded(cos_, scale), rounded(sin_, scale)
    return c, s


def sigmoid(x):
    return F(1) / (F(1) + exp(-x))


def drawn(name, n, normal, uniform, constant):
    """Returns n initial values of the parameter `name` for seed 0 (j3)."""
    key = 0xcbf29ce484222325
    for byte in bytes(8) + name.encode():
        key = (key ^ byte) * 0x100000001b3 % 2 ** 64
    pairs = np.arange((n + 1) // 2, dtype=np.uint64)
    words = philox([pairs & np.uint64(0xffffffff), pairs >> np.uint64(32), np.zeros_like(pairs), np.zeros_like(pairs)],
                   key)
    top = [(w >> np.uint64(8)).astype(F) for w in words]
    r = np.sqrt(F(-2) * log((top[0] + F(1)) * F(2.0 ** -24)))
    turns = [far_angle(a) if a > HALF_PI / F(2) else (0, a, F(0))
             for a in rounded(F(float.fromhex("0x1.921fb6p+2")), top[1] * F(2.0 ** -24))]
    s, c = waves(*(np.array(v) for v in zip(*turns)))
    gauss = np.stack([rounded(r, c), rounded(r, s)], 1).reshape(-1)[:n]
    flat = fma(F(2), np.stack([top[2], top[3]], 1).reshape(-1)[:n] * F(2.0 ** -24), F(-1))
    return fma(uniform, flat, fma(normal, gauss, constant))


def powers(x, n):
    """Returns x^n in binary64 by repeated squaring, beginning with the lowest bit of n."""
    y = D(1)
    while n:
        if n & 1:
            y = y * x
        x, n = x * x, n >> 1
    return y
