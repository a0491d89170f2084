"""Sines, tangents and their inverses, built once from basic operations for NumPy arrays and loop IR; see `elementary`."""
from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from .elementary import _SHIFTER, INF, _constant, _equal, _name, _poly, _whole

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
        for a, b in pairwise(words)
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
