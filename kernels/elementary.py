"""Elementary functions, built once from IEEE basic operations for NumPy arrays and for loop IR expressions.

`k` is `scalar.ARRAYS` or a `loops.Builder`; f32 is computed in f32 (powers, `hypot` and the reduction of angles use f64 or
integers inside), f64 in f64. Series are Taylor's, long enough that cutting them off costs less than a tenth of an ulp, so
that anybody can check the coefficients. Angles (`kernels.angles`) may be of any size. Greatest errors seen in some thousand
random arguments over the whole range (tests/test_scalar.py states bounds), in units of the last place, for f32 and f64:

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
