"""Elementary functions, built once from IEEE basic operations: in go NumPy arrays or loop IR expressions, out come the same.

`k` is `scalar.ARRAYS` or a `loops.Builder`; f32 is computed in f32 (powers, `hypot` and the reduction of angles use f64 or
integers inside), f64 in f64. Series are Taylor's, long enough that cutting them off costs less than a tenth of an ulp, so
that anybody can check the coefficients. Angles may be of any size. Greatest errors seen in some thousand random arguments over
the whole range (tests/test_scalar.py states bounds), in units of the last place, for f32 and f64:

    exp      0.93  0.89   tan      2.40  3.27   sigmoid  1.75  1.32
    exp2     0.95  0.86   sinpi    1.67  1.64   erf      1.96  1.29
    expm1    1.46  1.71   cospi    1.61  1.42   sqrt     0.50  0.50
    log      0.71  0.72   asin     2.29  2.11   rsqrt    1.40  1.33
    log2     1.46  1.29   acos     2.35  2.35   pow      0.50  3.66
    log10    1.81  1.62   atan     1.92  1.26   atan2    1.96  1.08
    log1p    0.75  0.74   sinh     2.29  1.95   hypot    0.50  1.58
    sin      1.32  1.91   cosh     2.29  1.69
    cos      1.33  2.30   tanh     1.91  1.92
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

NAN, INF = math.nan, math.inf
LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453


def _wide(x: Any) -> bool:
    return str(x.dtype) in ("f64", "float64")


def _name(x: Any) -> str:
    return "f64" if _wide(x) else "f32"


def _poly(x: Any, coefficients: Sequence[float]) -> Any:
    """c[0] + c[1] x + c[2] x² + …, from the inside out."""
    result: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        result = result * x + c
    return result


def _equal(k: Any, a: Any, b: Any) -> Any:
    return k.call("eq", a, b, dtype="bool")


def _constant(k: Any, value: float, like: Any) -> Any:
    """A number in the dtype of `like`, for where both sides of a `select` are numbers."""
    return k.cast(k.let(value, dtype="f64"), _name(like))


def _with_sign(k: Any, size: Any, x: Any) -> Any:
    """`size` ≥ 0 with the sign of x; x itself where x is 0."""
    return k.select(_equal(k, x, 0.0), x, k.select(x < 0.0, -size, size))


# --- powers of two and exponentials ---------------------------------------------------------------

# Adding 1.5 · 2^23 (f64: 1.5 · 2^52) leaves the nearest whole number in the low bits of the sum.
_SHIFTER = {"f32": (12582912.0, 0x4B400000, 127, 23), "f64": (6755399441055744.0, 0x4338000000000000, 1023, 52)}
# ln 2 in two parts; the first has so few bits that its product with a whole number below 2^11 is exact.
_LN2_PARTS = {"f32": (0.693145751953125, 1.4286068203094173e-06), "f64": (0.6931471803691238, 1.9082149292705877e-10)}
_EXPM1_TAIL = {"f32": [1 / math.factorial(n) for n in range(2, 8)], "f64": [1 / math.factorial(n) for n in range(2, 14)]}


def _whole(k: Any, x: Any) -> tuple[Any, Any]:
    """The nearest whole number as a float and as i64; |x| < 2^22."""
    shifter, bits, _, _ = _SHIFTER[_name(x)]
    shifted = k.let(x + shifter)
    return k.let(shifted - shifter), k.let(k.cast(shifted, "i64", "bits") - bits)


def _power_of_two(k: Any, n: Any, dtype: str) -> Any:
    """2^n, a normal number."""
    _, _, bias, places = _SHIFTER[dtype]
    return k.cast(k.call("shl", n + bias, places), dtype, "bits")


def _scaled(k: Any, y: Any, n: Any) -> Any:
    """y · 2^n, rounded once though 2^n may be out of range."""
    half = k.let(k.call("shr", n, 1))
    dtype = _name(y)
    return y * _power_of_two(k, half, dtype) * _power_of_two(k, n - half, dtype)


def _clamped(k: Any, x: Any, low: float, high: float) -> Any:
    return k.let(k.call("min", k.call("max", x, low), high))


def _expm1_tail(k: Any, r: Any) -> Any:
    """exp(r) - 1 for |r| ≤ ln(2) / 2."""
    return k.let(r + r * r * _poly(r, _EXPM1_TAIL[_name(r)]))


def _split(k: Any, x: Any, more: Any = None) -> tuple[Any, Any]:
    """(exp(r) - 1, n) with x + more = r + n ln 2."""
    high, low = _LN2_PARTS[_name(x)]
    whole, n = _whole(k, x * LOG2_E)
    r = x - whole * high - whole * low
    return _expm1_tail(k, k.let(r if more is None else r + more)), n


def exp(k: Any, x: Any) -> Any:
    tail, n = _split(k, _clamped(k, x, *((-746.0, 710.0) if _wide(x) else (-104.0, 89.0))))
    return _scaled(k, tail + 1.0, n)


def exp2(k: Any, x: Any) -> Any:
    x = _clamped(k, x, *((-1076.0, 1025.0) if _wide(x) else (-151.0, 129.0)))
    whole, n = _whole(k, x)
    return _scaled(k, _expm1_tail(k, k.let((x - whole) * LN2)) + 1.0, n)


def expm1(k: Any, x: Any) -> Any:
    tail, n = _split(k, _clamped(k, x, *((-40.0, 710.0) if _wide(x) else (-18.0, 89.0))))
    one_less = 1.0 - _power_of_two(k, -k.call("min", n, 60), _name(x))
    return k.select(_equal(k, x, 0.0), x, _scaled(k, tail + one_less, n))


def sinh(k: Any, x: Any) -> Any:
    size = k.let(k.call("abs", x))
    e = k.let(expm1(k, size))
    half = k.let(exp(k, size * 0.5))
    return _with_sign(k, k.select(size > (700.0 if _wide(x) else 80.0), half * 0.5 * half, (e + e / (e + 1.0)) * 0.5), x)


def cosh(k: Any, x: Any) -> Any:
    size = k.let(k.call("abs", x))
    e = k.let(exp(k, size))
    half = k.let(exp(k, size * 0.5))
    return k.select(size > (700.0 if _wide(x) else 80.0), half * 0.5 * half, e * 0.5 + 0.5 / e)


def tanh(k: Any, x: Any) -> Any:
    e = k.let(expm1(k, k.call("min", k.call("abs", x), 20.0) * 2.0))
    return _with_sign(k, e / (e + 2.0), x)


def sigmoid(k: Any, x: Any) -> Any:
    e = k.let(exp(k, -k.call("abs", x)))
    return k.select(x < 0.0, e, 1.0) / (e + 1.0)


# --- logarithms -----------------------------------------------------------------------------------

_ROOT_HALF_BITS = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}
_LOG_TAIL = {"f32": [2 / (2 * n + 1) for n in range(1, 6)], "f64": [2 / (2 * n + 1) for n in range(1, 12)]}
_LOG_LN2 = {"f32": (0.6931381225585938, 9.058001351559417e-06), "f64": _LN2_PARTS["f64"]}
_LEAST_NORMAL = {"f32": (2.0**-126, 2.0**25, 25), "f64": (2.0**-1022, 2.0**54, 54)}
_LOG10_2 = {"f32": (0.301025390625, 4.605039066518657e-06), "f64": (0.301029995663157, 8.241712586023572e-13)}


def _mantissa(k: Any, x: Any) -> tuple[Any, Any]:
    """(m, e) with x = m · 2^e, √½ ≤ m < √2, e of x's dtype; x > 0 and finite."""
    dtype = _name(x)
    least, up, more = _LEAST_NORMAL[dtype]
    tiny = k.let(x < least)
    bits = k.let(k.cast(k.select(tiny, x * up, x), "i64", "bits"))
    e = k.let(k.call("shr", bits - _ROOT_HALF_BITS[dtype], _SHIFTER[dtype][3]))
    m = k.let(k.cast(bits - k.call("shl", e, _SHIFTER[dtype][3]), dtype, "bits"))
    return m, k.let(k.cast(e - k.select(tiny, e * 0 + more, e * 0), dtype))


def _log_sum(k: Any, m: Any, e: Any, more: Any) -> Any:
    """log(m) + e · ln 2 + more, for m near 1: log(1 + f) = f - f²/2 + s (f²/2 + R) with s = f / (2 + f)."""
    high, low = _LOG_LN2[_name(m)]
    f = k.let(m - 1.0)
    s = k.let(f / (f + 2.0))
    z = k.let(s * s)
    half = k.let(f * f * 0.5)
    tail = s * (half + z * _poly(z, _LOG_TAIL[_name(m)]))
    return e * high - ((half - (tail + (e * low + more))) - f)


def _log_ends(k: Any, x: Any, y: Any, zero: float = 0.0) -> Any:
    """y, but -inf at `zero`, NaN below it, inf at inf."""
    return k.select(x > zero, k.select(_equal(k, x, INF), x, y), k.select(_equal(k, x, zero), -INF, _constant(k, NAN, x)))


def log(k: Any, x: Any) -> Any:
    m, e = _mantissa(k, x)
    return _log_ends(k, x, _log_sum(k, m, e, e * 0.0))


def log2(k: Any, x: Any) -> Any:
    m, e = _mantissa(k, x)
    return _log_ends(k, x, e + _log_sum(k, m, e * 0.0, e * 0.0) * LOG2_E)


def log10(k: Any, x: Any) -> Any:
    m, e = _mantissa(k, x)
    high, low = _LOG10_2[_name(x)]
    return _log_ends(k, x, e * high + (e * low + _log_sum(k, m, e * 0.0, e * 0.0) * 0.4342944819032518))


def log1p(k: Any, x: Any) -> Any:
    u = k.let(x + 1.0)
    lost = k.let(k.select(x < 1.0, x - (u - 1.0), 1.0 - (u - x)) / u)
    m, e = _mantissa(k, u)
    y = k.select(_equal(k, x, 0.0), x, _log_sum(k, m, e, lost))
    return _log_ends(k, x, y, -1.0)


# --- powers ---------------------------------------------------------------------------------------


def _two_product(k: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """a · b exactly, as a sum of two f64."""
    p = k.let(a * b)

    def halves(v: Any) -> tuple[Any, Any]:
        c = k.let(v * 134217729.0)
        high = k.let(c - (c - v))
        return high, k.let(v - high)

    (a1, a0), (b1, b0) = halves(a), halves(b)
    return p, k.let(((a1 * b1 - p) + a1 * b0 + a0 * b1) + a0 * b0)


def _log_pair(k: Any, x: Any) -> tuple[Any, Any]:
    """log(x) of f64 as a sum of two f64, about 60 bits."""
    m, e = _mantissa(k, x)
    high, low = _LN2_PARTS["f64"]
    f = k.let(m - 1.0)
    d = k.let(f + 2.0)
    s = k.let(f / d)
    p, rest = _two_product(k, s, d)
    s_low = k.let((((f - p) - rest) - s * (f - (d - 2.0))) / d)
    z = k.let(s * s)
    tail = s * z * _poly(z, _LOG_TAIL["f64"]) + s_low * 2.0
    a, b = k.let(e * high), k.let(s * 2.0)
    total = k.let(a + b)
    back = k.let(total - a)
    lost = (a - (total - back)) + (b - back)
    more = k.let(lost + (tail + e * low))
    first = k.let(total + more)
    return first, k.let(more - (first - total))


def _power_of_positive(k: Any, a: Any, b: Any) -> Any:
    """exp(b log a) in f64, for 0 < a < inf."""
    b = _clamped(k, b, -(2.0**70), 2.0**70)
    first, more = _log_pair(k, a)
    product, lost = _two_product(k, b, first)
    inside = _clamped(k, product, -746.0, 710.0)
    tail, n = _split(k, inside, k.select(_equal(k, inside, product), lost + b * more, 0.0))
    return _scaled(k, tail + 1.0, n)


def pow(k: Any, a: Any, b: Any) -> Any:
    """C's rules: x^0 = 1^x = 1, a negative number to a whole power has its sign, to another one is NaN; x^2 is x · x."""
    size = k.let(k.call("abs", a))
    y = _power_of_positive(k, k.cast(size, "f64"), k.cast(b, "f64"))
    y = y if _wide(a) else k.cast(y, "f32")
    zero = _equal(k, size, 0.0)
    to_zero = (zero & (b > 0.0)) | (~zero & (b < 0.0))
    y = k.let(k.select(zero | _equal(k, size, INF), k.select(to_zero, 0.0, _constant(k, INF, a)), y))
    whole = _equal(k, k.call("rint", b), b)
    odd = whole & ~_equal(k, k.call("rint", b * 0.5), b * 0.5)
    negative = k.let((a < 0.0) | (1.0 / a < 0.0))
    y = k.select(negative & odd, -y, k.select((a < 0.0) & ~whole & ~_equal(k, size, INF), _constant(k, NAN, a), y))
    y = k.select(_equal(k, b, 2.0), a * a, k.select(_equal(k, b, b) & _equal(k, a, a), y, a + b))
    return k.select(_equal(k, a, 1.0) | _equal(k, b, 0.0), 1.0, y)


def hypot(k: Any, x: Any, y: Any) -> Any:
    if not _wide(x):
        x, y = k.let(k.cast(x, "f64")), k.let(k.cast(y, "f64"))
        return k.cast(k.call("sqrt", x * x + y * y), "f32")
    x, y = k.let(k.call("abs", x)), k.let(k.call("abs", y))
    big, small = k.let(k.call("max", x, y)), k.call("min", x, y)
    ratio = k.let(small / k.select(_equal(k, big, 0.0), 1.0, big))
    return k.select(_equal(k, big, INF), big, big * k.call("sqrt", ratio * ratio + 1.0))


# --- angles ---------------------------------------------------------------------------------------

PI = 3.141592653589793
_SIN_TAIL = {"f32": [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 6)],
             "f64": [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 10)]}
_COS_TAIL = {"f32": [(-1) ** n / math.factorial(2 * n) for n in range(2, 6)],
             "f64": [(-1) ** n / math.factorial(2 * n) for n in range(2, 10)]}
# The first 1216 binary digits of 2 / pi.
_TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1D"
    "EB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B"
    "5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B"
    "6BAB",
    16,
)


def _sine_cosine(k: Any, r: Any) -> tuple[Any, Any]:
    """sin(r) and cos(r) for |r| ≤ pi / 4."""
    z = k.let(r * r)
    half = k.let(z * 0.5)
    one = k.let(1.0 - half)
    sine = r + r * z * _poly(z, _SIN_TAIL[_name(r)])
    cosine = one + (((1.0 - one) - half) + z * z * _poly(z, _COS_TAIL[_name(r)]))
    return k.let(sine), k.let(cosine)


_BITS_BEFORE = {"f32": (26, 3, (2, 1)), "f64": (55, 4, (16, 8, 4, 2, 1))}


def _window(k: Any, start: Any, dtype: str) -> list[Any]:
    """64-bit words of 2 / pi, behind some zero bits, from bit `start` on."""
    zeros, needed, steps = _BITS_BEFORE[dtype]
    count = needed + sum(steps)
    digits = _TWO_OVER_PI << 64 * (count + 1) >> 1216 + zeros + 64
    signed = [((digits >> 64 * (count - 1 - i) & (2**64 - 1)) ^ 2**63) - 2**63 for i in range(count)]
    words = [k.let(w) for w in signed]
    index = k.let(k.call("shr", start, 6))
    for step in steps:
        jump = k.let(k.call("ne", k.call("bitand", index, step), 0, dtype="bool"))
        words = [k.let(k.select(jump, words[i + step], words[i])) for i in range(len(words) - step)]
    places = k.let(k.call("bitand", start, 63))
    return [
        k.let(k.call("bitor", k.call("shl", a, places), k.call("ushr", k.call("ushr", b, 1), 63 - places)))
        for a, b in zip(words, words[1:], strict=False)
    ]


def _quarters(k: Any, x: Any) -> tuple[Any, Any]:
    """(q, r) with |x| = q pi / 2 + r up to a multiple of 2 pi, |r| ≤ pi / 4: Payne and Hanek's reduction, at any size."""
    dtype = _name(x)
    _, _, bias, places = _SHIFTER[dtype]
    size = k.let(k.call("abs", x))
    bits = k.let(k.cast(size, "i64", "bits"))
    m = k.let(k.call("bitor", k.call("bitand", bits, 2**places - 1), 2**places))
    start = k.call("shr", bits, places) - (bias + places) + (_BITS_BEFORE[dtype][0] - 2)
    high, *rest = _window(k, k.let(k.call("min", k.call("max", start, 0), 64 * sum(_BITS_BEFORE[dtype][2][:1]))), dtype)
    if dtype == "f32":
        turns = k.let(m * high + k.call("mulhi", m, rest[0]))
        q = k.let(k.call("ushr", turns + 2**61, 62))
        r = k.cast(k.cast(turns - k.call("shl", q, 62), "f64") * (PI / 2 * 2.0**-62), "f32")
    else:
        part = k.let(m * rest[0])
        low = k.let(part + k.call("mulhi", m, rest[1]))
        turns = k.let(m * high + k.call("mulhi", m, rest[0]) + k.select(_below(k, low, part), 1, low * 0))
        q = k.let(k.call("ushr", turns + 2**61, 62))
        r = _from_fraction(k, k.let(turns - k.call("shl", q, 62)), low)
    small = k.let(size < PI / 4)
    return k.let(k.select(small, 0, q)), k.let(k.select(small, size, r))


def _below(k: Any, a: Any, b: Any) -> Any:
    """a < b as unsigned numbers."""
    return k.call("bitxor", a, -(2**63)) < k.call("bitxor", b, -(2**63))


def _from_fraction(k: Any, high: Any, low: Any) -> Any:
    """(high · 2^64 + low) · 2^-126 · pi / 2 in f64; low is unsigned."""
    negative = k.let(high < 0)
    low_size = k.let(k.select(negative, -low, low))
    carried = k.select(_equal(k, low, 0), low * 0, 1)
    high_size = k.select(negative, -high - carried, high)
    total = k.cast(high_size, "f64") * 2.0**64 + k.cast(k.call("ushr", low_size, 1), "f64") * 2.0
    r = k.let(total * (PI / 2 * 2.0**-126))
    return k.select(negative, -r, r)


def _turned(k: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """Sine and cosine of q pi / 2 + r."""
    s, c = _sine_cosine(k, r)
    odd = k.let(k.call("ne", k.call("bitand", q, 1), 0, dtype="bool"))
    sine, cosine = k.select(odd, c, s), k.select(odd, s, c)
    minus_sine = k.call("ne", k.call("bitand", q, 2), 0, dtype="bool")
    minus_cosine = k.call("ne", k.call("bitand", q + 1, 2), 0, dtype="bool")
    return k.let(k.select(minus_sine, -sine, sine)), k.let(k.select(minus_cosine, -cosine, cosine))


def _finite(k: Any, x: Any, y: Any) -> Any:
    return k.select(k.call("abs", x) < INF, y, x - x)


def sin(k: Any, x: Any) -> Any:
    s, _ = _turned(k, *_quarters(k, x))
    return _finite(k, x, k.select(_equal(k, x, 0.0), x, k.select(x < 0.0, -s, s)))


def cos(k: Any, x: Any) -> Any:
    return _finite(k, x, _turned(k, *_quarters(k, x))[1])


def tan(k: Any, x: Any) -> Any:
    s, c = _turned(k, *_quarters(k, x))
    t = k.let(s / c)
    return _finite(k, x, k.select(_equal(k, x, 0.0), x, k.select(x < 0.0, -t, t)))


def _half_turns(k: Any, x: Any) -> tuple[Any, Any]:
    """Sine and cosine of pi x; taking off whole turns is exact."""
    x = k.let(x - k.call("rint", x * 0.5) * 2.0)
    whole, q = _whole(k, x * 2.0)
    return _turned(k, q, k.let((x - whole * 0.5) * PI))


def sinpi(k: Any, x: Any) -> Any:
    return k.select(_equal(k, x, 0.0), x, _half_turns(k, x)[0])


def cospi(k: Any, x: Any) -> Any:
    return _half_turns(k, x)[1]


_ATAN_TAIL = {"f32": [(-1) ** n / (2 * n + 1) for n in range(1, 9)], "f64": [(-1) ** n / (2 * n + 1) for n in range(1, 21)]}
_QUARTER = {"f32": (0.7853981852531433, -2.1855695000931213e-08), "f64": (0.7853981633974483, 3.061616997868383e-17)}


def atan2(k: Any, y: Any, x: Any) -> Any:
    a, b = k.let(k.call("abs", y)), k.let(k.call("abs", x))
    big = k.call("max", a, b)
    shrink = k.let(k.select(big > 1e30, 0.25, _constant(k, 1.0, big)))
    big, small = k.let(big * shrink), k.let(k.call("min", a, b) * shrink)
    both = k.let(_equal(k, small, INF))
    steep = k.let((small > big * 0.41421356) | both)
    above = k.select(steep, small - big, small)
    t = above / k.select(_equal(k, big, 0.0), 1.0, k.select(steep, small + big, big))
    t = k.let(k.select(both, 0.0, t))
    z = k.let(t * t)
    p = k.let(t + t * z * _poly(z, _ATAN_TAIL[_name(t)]))
    # The angle is `quarters` · pi / 4 plus or minus p: turned about 45 and 90 degrees as need be.
    high, low = _QUARTER[_name(t)]
    over, left = k.let(a > b), k.let((x < 0.0) | (1.0 / x < 0.0))
    quarters = k.select(steep, 1.0, _constant(k, 0.0, t))
    quarters = k.select(over, 2.0 - quarters, quarters)
    quarters = k.let(k.select(left, 4.0 - quarters, quarters))
    p = k.select(over, -p, p)
    p = k.select(left, -p, p)
    angle = k.let(quarters * high + (quarters * low + p))
    return k.select((y < 0.0) | (1.0 / y < 0.0), -angle, angle)


def atan(k: Any, x: Any) -> Any:
    return k.select(_equal(k, x, 0.0), x, atan2(k, x, _constant(k, 1.0, x)))


def asin(k: Any, x: Any) -> Any:
    return k.select(_equal(k, x, 0.0), x, atan2(k, x, k.let(k.call("sqrt", (1.0 - x) * (x + 1.0)))))


def acos(k: Any, x: Any) -> Any:
    return atan2(k, k.let(k.call("sqrt", 1.0 - x)), k.let(k.call("sqrt", x + 1.0))) * 2.0


# --- the error function ---------------------------------------------------------------------------

_ERF_TAIL = {"f32": [(-1) ** n / math.factorial(n) / (2 * n + 1) for n in range(1, 12)],
             "f64": [(-1) ** n / math.factorial(n) / (2 * n + 1) for n in range(1, 20)]}
# exp(x²) erfc(x) for 1 ≤ x ≤ 6, a polynomial in (x - 2) / (x + 2) through Chebyshev's points.
_ERFCX = {
    "f32": [
        0.2553956763570171, -0.4271858701005458, 0.24165816708007645, -0.07897715079540377, 0.00373360678012714,
        0.006973542284184829, -0.0008467640506489965, -0.0008468608866380713,
    ],
    "f64": [
        0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213, 0.003732892404327764,
        0.006997461739200444, -0.0008471432509203844, -0.000981977026567889, 4.355560219515472e-05, 0.00017436116545392264,
        2.7525480361206068e-05, -2.7579864674305787e-05, -1.396807230177146e-05, 1.392621183618803e-06, 3.789215643758464e-06,
        1.1780775215625583e-06, -5.322696855655786e-07, -4.215301054238321e-07,
    ],
}


def erf(k: Any, x: Any) -> Any:
    size = k.let(k.call("min", k.call("abs", x), 6.0))
    z = k.let(size * size)
    near = (size + size * z * _poly(z, _ERF_TAIL[_name(x)])) * 1.1283791670955126
    w = k.let((size - 2.0) / (size + 2.0))
    far = 1.0 - exp(k, -z) * _poly(w, _ERFCX[_name(x)])
    return _with_sign(k, k.select(size < 1.0, near, far), x)
