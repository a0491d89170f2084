"""The table of scalar functions: name, head, meaning in NumPy, expansion into primitives, interval and cost.

**Numbers.** Integers are computed with as i64, whatever their width in memory; f32 and f64 in strict IEEE
arithmetic of their own width; f16 and bf16 are turned into f32 before every function and its result is rounded
back (nearest, ties to even). All NaNs are one value: which of its bit patterns comes out is not defined.

**Primitives** (`PRIMITIVES`) are what printers of loop IR must know; everything else is built from them:

    add sub mul neg          i64 (wrap around; lowering checks `overflow` first), f32, f64
    div                      f32, f64
    floordiv mod             i64 only, rounding down, divisor not 0 (mod of the least i64 by -1 is 0)
    min max                  min(a, b) is `a if a < b or a != a else b`: NaN wins, of equals (0, -0) the second;
                             max the same with `>`
    abs                      i64 (wraps), f32, f64 (clears the sign)
    floor ceil rint sqrt     f32, f64; rint rounds half to even
    eq ne lt le gt ge        i64, f32, f64, bool → bool
    and or not               bool
    shl shr ushr             i64 by 0 … 63 places; shr copies the sign, ushr puts in zeros
    bitand bitor bitxor      i64
    mulhi                    i64: the upper 64 bits of the product of both as unsigned numbers

**Casts** (`cast` here, `Cast` in loop IR, `cast` nodes of the graph) never fail:

    round      float → int: half to even, then saturating, NaN → 0; int → int: saturating
    truncate   float → int: towards zero, then saturating, NaN → 0; int → int: saturating
    exact      int → int: the same number (low bits where it doesn't fit: `cast_overflows` tells)
    any mode   int → float, float → float: nearest, ties to even; to f16 and bf16 always through f32;
               to bool: not 0; from bool: 0 or 1
    bits       the same bits: i64 ↔ f64, i64 (low half) → f32, f32 → i64 (0 … 2**32-1)

A `Scalar` with `expand` is built from primitives: `expand(k, *args)` takes a `loops.Builder` and expressions, or
`ARRAYS` and NumPy arrays, which is what `ref` does. So reference and kernels are one text. `overflow(k, *args)` says,
in either world, where an integer result is past i64 or undefined; None where that can't be.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from ..dsl.types import INT_RANGE, INTS
from . import angles
from . import elementary as el

NUMPY: dict[str, Any] = {
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "u16": np.dtype(np.uint16), "i16": np.dtype(np.int16),
    "u32": np.dtype(np.uint32), "i32": np.dtype(np.int32), "u64": np.dtype(np.uint64), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
    "bytes": np.dtype(object), "text": np.dtype(object), "path": np.dtype(object),
}
NAMES = {dtype: name for name, dtype in NUMPY.items() if dtype != np.dtype(object)}
LEAST = -(2**63)
Interval = tuple[float, float]

# --- primitives and casts in NumPy --------------------------------------------------------------


def _mulhi(a: Any, b: Any) -> Any:
    a, b = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    rest = a0 * b1 + (middle & low)
    return (a1 * b1 + (middle >> half) + (rest >> half)).astype(np.int64)


def _ushr(a: Any, n: Any) -> Any:
    return (np.asarray(a).astype(np.uint64) >> np.asarray(n).astype(np.uint64)).astype(np.int64)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "div": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder,
    "min": lambda a, b: np.where((a < b) | (a != a), a, b),
    "max": lambda a, b: np.where((a > b) | (a != a), a, b),
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "sqrt": np.sqrt,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "shl": np.left_shift, "shr": np.right_shift, "ushr": _ushr,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "mulhi": _mulhi,
}


def cast(x: Any, dtype: str, mode: str = "exact") -> Any:
    """NumPy array (or scalar) `x` as `dtype`; the modes are stated at the top."""
    x = np.asarray(x)
    to = NUMPY[dtype]
    if mode == "bits":
        return _bits(x, dtype)
    if x.dtype == to:
        return x
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return x != 0
        if dtype not in INTS:
            return x.astype(np.float32).astype(to) if dtype in ("f16", "bf16") else x.astype(to)
        if x.dtype == np.bool_ or (x.dtype.kind in "iu" and mode == "exact"):
            return x.astype(to)
        if x.dtype.kind in "iu":
            return _saturate(x, dtype)
        wide = x.astype(np.float64)
        return _saturate(np.rint(wide) if mode == "round" else np.trunc(wide), dtype)


def _saturate(x: Any, dtype: str) -> Any:
    low, high = INT_RANGE[dtype]
    if x.dtype == np.float64:
        inside = np.where((x >= float(low)) & (x < float(high + 1)), x, 0.0).astype(NUMPY[dtype])
        most, least = NUMPY[dtype].type(high), NUMPY[dtype].type(low)
        return np.where(x >= float(high + 1), most, np.where(x < float(low), least, inside))
    own = np.iinfo(x.dtype)
    return np.clip(x, max(low, own.min), min(high, own.max)).astype(NUMPY[dtype])


def cast_overflows(x: Any, dtype: str) -> Any:
    """Where an "exact" cast between integers changes the number."""
    x = np.asarray(x)
    if x.dtype.kind not in "iu" or dtype not in INTS:
        return np.zeros(x.shape, np.bool_)
    low, high = INT_RANGE[dtype]
    own = np.iinfo(x.dtype)
    return (x < max(low, own.min)) | (x > min(high, own.max))


def _bits(x: Any, dtype: str) -> Any:
    match NAMES[x.dtype], dtype:
        case ("f32", "i64"):
            return x.view(np.uint32).astype(np.int64)
        case ("i64", "f32"):
            return (x & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
        case ("f64", "i64") | ("i64", "f64"):
            return x.view(NUMPY[dtype])
        case (a, b):
            raise TypeError(f"bits of {a} as {b}")


def literal(value: Any, dtype: str) -> Any:
    """Numbers as a program writes them, as an array of `dtype`; f16 and bf16 through f32."""
    with np.errstate(over="ignore"):   # what is too large is infinite
        return np.asarray(value, np.float32).astype(NUMPY[dtype]) if dtype in ("f16", "bf16") else np.asarray(value, NUMPY[dtype])


class Arrays:
    """What `loops.Builder` does for expressions, done at once to NumPy arrays."""

    def let(self, value: Any, hint: str = "", dtype: str = "i64") -> Any:
        return value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)

    def call(self, fn: str, *args: Any, dtype: str | None = None) -> Any:
        return PRIMITIVES[fn](*args)

    def cast(self, value: Any, dtype: str, mode: str = "exact") -> Any:
        return cast(value, dtype, mode)

    def select(self, condition: Any, then: Any, other: Any) -> Any:
        typed = then if isinstance(then, (np.ndarray, np.generic)) else other
        return np.where(condition, np.asarray(then, typed.dtype), np.asarray(other, typed.dtype))


ARRAYS = Arrays()

# --- where integers go past i64 -----------------------------------------------------------------


def add_overflow(k: Any, a: Any, b: Any) -> Any:
    r = k.let(a + b)
    return k.call("bitand", k.call("bitxor", a, r), k.call("bitxor", b, r)) < 0


def sub_overflow(k: Any, a: Any, b: Any) -> Any:
    r = k.let(a - b)
    return k.call("bitand", k.call("bitxor", a, b), k.call("bitxor", a, r)) < 0


def mul_overflow(k: Any, a: Any, b: Any) -> Any:
    high = k.call("mulhi", a, b) - k.select(a < 0, b, 0) - k.select(b < 0, a, 0)
    return k.call("ne", high, k.call("shr", a * b, 63), dtype="bool")


def least_overflow(k: Any, a: Any) -> Any:
    return k.call("eq", a, LEAST, dtype="bool")


def floordiv_overflow(k: Any, a: Any, b: Any) -> Any:
    return k.call("eq", a, LEAST, dtype="bool") & k.call("eq", b, -1, dtype="bool")


def shift_left_overflow(k: Any, a: Any, n: Any) -> Any:
    places = k.let(k.call("bitand", n, 63))
    kept = k.call("eq", k.call("shr", k.call("shl", a, places), places), a, dtype="bool")
    return (n < 0) | ((n > 63) & k.call("ne", a, 0, dtype="bool")) | ~kept


def shift_right_overflow(k: Any, a: Any, n: Any) -> Any:
    return n < 0


def _powers(k: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """a to the power b ≥ 0 by squaring, and where that is past i64. A base of 2 or more overflows beyond 62."""
    result: Any = k.let(a * 0 + 1)
    base, wide = a, k.call("ne", a, a, dtype="bool")
    bad = (b < 0) | ((b > 63) & ((a > 1) | (a < -1)))
    for bit in range(6):
        used = k.let(k.call("ne", k.call("bitand", k.call("shr", b, bit), 1), 0, dtype="bool"))
        bad = k.let(bad | (used & (wide | mul_overflow(k, result, base))))
        result = k.let(k.select(used, result * base, result))
        wide = k.let(wide | mul_overflow(k, base, base))
        base = k.let(base * base)
    nothing = k.call("eq", a, 0, dtype="bool") & (b > 0)
    return k.select(nothing, 0, result), bad


def pow_overflow(k: Any, a: Any, b: Any) -> Any:
    return _powers(k, a, b)[1]


# --- functions of a few primitives --------------------------------------------------------------


def _is_int(x: Any) -> bool:
    return str(x.dtype) in ("i64", "int64")


def _floordiv(k: Any, a: Any, b: Any) -> Any:
    return k.call("floordiv", a, b) if _is_int(a) else k.call("floor", a / b)


def _mod(k: Any, a: Any, b: Any) -> Any:
    return k.call("mod", a, b) if _is_int(a) else a - k.call("floor", a / b) * b


def _pow(k: Any, a: Any, b: Any) -> Any:
    return _powers(k, a, b)[0] if _is_int(a) else el.pow(k, a, b)


def _clamp(k: Any, x: Any, low: Any, high: Any) -> Any:
    return k.call("min", k.call("max", x, low), high)


def _sign(k: Any, x: Any) -> Any:
    return k.select(x > 0, 1, k.select(x < 0, -1, x))


def _rounding(primitive: str) -> Callable[..., Any]:
    return lambda k, x: x if _is_int(x) else k.call(primitive, x)


def _trunc(k: Any, x: Any) -> Any:
    return x if _is_int(x) else k.select(x < 0, k.call("ceil", x), k.call("floor", x))


def _shift_left(k: Any, a: Any, n: Any) -> Any:
    return k.select(n > 63, 0, k.call("shl", a, k.call("bitand", n, 63)))


def _shift_right(k: Any, a: Any, n: Any) -> Any:
    return k.call("shr", a, k.call("min", k.call("max", n, 0), 63))


def _direct(primitive: str, dtype: str | None = None) -> Callable[..., Any]:
    return lambda k, *args: k.call(primitive, *args, dtype=dtype)


# --- intervals (of the results that aren't NaN; exact whatever the float's width) ------------------


def _fixed(low: float, high: float) -> Callable[..., Interval]:
    return lambda *_: (low, high)


def _rounded(f: Callable[[float], int]) -> Callable[..., Interval]:
    def end(v: float) -> float:
        return v if math.isinf(v) else f(v)

    return lambda x: (end(x[0]), end(x[1]))


def _abs_interval(x: Interval) -> Interval:
    low, high = x
    return (low, high) if low >= 0 else (-high, -low) if high <= 0 else (0, max(-low, high))


def _min_interval(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def _max_interval(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _clamp_interval(x: Interval, low: Interval, high: Interval) -> Interval:
    return _min_interval(_max_interval(x, low), high)


def _sign_interval(x: Interval) -> Interval:
    def sign(v: float) -> int:
        return (v > 0) - (v < 0)

    return sign(x[0]), sign(x[1])


def _relu_interval(x: Interval) -> Interval:
    return max(x[0], 0), max(x[1], 0)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """One scalar function.

    `operands`: how arguments meet. "num": integers at i64, floats at the widest; an integer beside a float takes its
    dtype. "float": the same, then i64 becomes f32. "int": i64. "bool". "any": "num", or equal dtypes of any other kind.
    `result`: "same" as the operands met at, or "bool". `ref` takes arrays of one dtype, broadcasts, and gives an array.
    `example`: (args, result), in f32 where fractions occur. `cost`: about how many additions it takes.
    """

    name: str
    head: str
    doc: str
    example: tuple[tuple[Any, ...], Any]
    operands: str
    result: str
    ref: Callable[..., Any]
    expand: Callable[..., Any] | None = None
    overflow: Callable[..., Any] | None = None
    interval: Callable[..., Interval] | None = None
    cost: float = 1.0

    @property
    def arity(self) -> int:
        return self.head.count(":")


def _reference(expand: Callable[..., Any]) -> Callable[..., Any]:
    """`expand` over arrays; f16 and bf16 pass through f32."""

    def ref(*args: Any) -> Any:
        arrays = [np.asarray(a) for a in args]
        dtype = arrays[0].dtype
        half = dtype in (NUMPY["f16"], NUMPY["bf16"])
        if dtype.kind in "iu" and dtype != np.int64:
            arrays = [a.astype(np.int64) for a in arrays]
        elif half:
            arrays = [a.astype(np.float32) for a in arrays]
        with np.errstate(all="ignore"):
            result = np.asarray(expand(ARRAYS, *arrays))
            return result.astype(dtype) if half and result.dtype == np.float32 else result

    return ref


def _row(head: str, doc: str, example: tuple[tuple[Any, ...], Any], expand: Callable[..., Any] | None = None,
         **rest: Any) -> Scalar:
    name = head.split("(", 1)[0]
    result = "bool" if head.endswith("-> bool") else "same"
    words = {p.split(":")[1].strip() for p in head[head.index("(") + 1 : head.index(")")].split(",")}
    operands = "float" if head.endswith("-> float") else words.pop()
    ref = _reference(expand or _direct(name))
    return replace(Scalar(name, head, doc, example, operands, result, ref, expand), **rest)


_ROWS = (
    # arithmetic
    _row("add(a: num, b: num) -> num", "The sum: `a + b`.", ((2, 3), 5), overflow=add_overflow),
    _row("sub(a: num, b: num) -> num", "The difference: `a - b`.", ((2, 3), -1), overflow=sub_overflow),
    _row("mul(a: num, b: num) -> num", "The product: `a * b`.", ((2, 3), 6), overflow=mul_overflow),
    _row("div(a: num, b: num) -> float", "The quotient: `a / b`; of integers it is f32.", ((1.0, 4.0), 0.25), cost=4),
    _row("floordiv(a: num, b: num) -> num", "The quotient rounded down: `a // b`.", ((-7, 2), -4), _floordiv,
         overflow=floordiv_overflow, cost=20),
    _row("mod(a: num, b: num) -> num", "What `a // b` leaves: `a % b`, with the sign of b (floats: `a - floor(a / b) * b`).",
         ((-7, 2), 1), _mod, cost=20),
    _row("pow(a: num, b: num) -> num", "a to the power b: `a ^ b`; the power of an integer is 0 or more.", ((2, 10), 1024),
         _pow,
         overflow=pow_overflow, cost=60),
    _row("neg(x: num) -> num", "The opposite: `-x`.", ((2,), -2), overflow=least_overflow, interval=lambda x: (-x[1], -x[0])),
    # comparisons and logic
    _row("eq(a: any, b: any) -> bool", "Are they equal: `a == b`.", ((2, 2), True)),
    _row("ne(a: any, b: any) -> bool", "Do they differ: `a != b`; NaN differs from itself.", ((2, 2), False)),
    _row("lt(a: num, b: num) -> bool", "Is a less: `a < b`.", ((2, 3), True)),
    _row("le(a: num, b: num) -> bool", "Is a less or equal: `a <= b`.", ((2, 3), True)),
    _row("gt(a: num, b: num) -> bool", "Is a greater: `a > b`.", ((2, 3), False)),
    _row("ge(a: num, b: num) -> bool", "Is a greater or equal: `a >= b`.", ((2, 3), False)),
    _row("and(a: bool, b: bool) -> bool", "Are both true.", ((True, False), False)),
    _row("or(a: bool, b: bool) -> bool", "Is one of them true.", ((True, False), True)),
    _row("not(x: bool) -> bool", "The opposite of a condition.", ((True,), False)),
    # order and rounding
    _row("min(a: num, b: num) -> num", "The lesser; NaN if one is NaN.", ((2, 3), 2), interval=_min_interval),
    _row("max(a: num, b: num) -> num", "The greater; NaN if one is NaN.", ((2, 3), 3), interval=_max_interval),
    _row("clamp(x: num, low: num, high: num) -> num", "x kept between low and high (high wins).", ((7, 0, 5), 5), _clamp,
         interval=_clamp_interval, cost=2),
    _row("abs(x: num) -> num", "x without its sign.", ((-3,), 3), overflow=least_overflow, interval=_abs_interval),
    _row("sign(x: num) -> num", "-1, 0 or 1; NaN for NaN, -0 for -0.", ((-3,), -1), _sign, interval=_sign_interval, cost=2),
    _row("floor(x: num) -> num", "Rounded down to a whole number.", ((-1.5,), -2.0),
         _rounding("floor"), interval=_rounded(math.floor)),
    _row("ceil(x: num) -> num", "Rounded up to a whole number.", ((-1.5,), -1.0),
         _rounding("ceil"), interval=_rounded(math.ceil)),
    _row("round(x: num) -> num", "The nearest whole number, half to even.", ((2.5,), 2.0),
         _rounding("rint"), interval=_rounded(round)),
    _row("trunc(x: num) -> num", "Rounded towards zero.", ((-1.5,), -1.0), _trunc, interval=_rounded(math.trunc), cost=3),
    _row("fract(x: num) -> float", "What lies above floor(x).", ((2.75,), 0.75), lambda k, x: x - k.call("floor", x),
         interval=_fixed(0, 1), cost=2),
    _row("lerp(a: num, b: num, t: num) -> float", "The value t of the way from a to b: `a + (b - a) * t`.",
         ((1.0, 3.0, 0.5), 2.0), lambda k, a, b, t: a + (b - a) * t, cost=3),
    # roots, exponentials, logarithms
    _row("sqrt(x: num) -> float", "The square root.", ((9.0,), 3.0), interval=_fixed(0, math.inf), cost=5),
    _row("rsqrt(x: num) -> float", "One divided by the square root.", ((4.0,), 0.5), lambda k, x: 1.0 / k.call("sqrt", x),
         interval=_fixed(-math.inf, math.inf), cost=9),
    _row("hypot(x: num, y: num) -> float", "The square root of x² + y², without overflow between.", ((3.0, 4.0), 5.0),
         el.hypot, interval=_fixed(0, math.inf), cost=15),
    _row("exp(x: num) -> float", "e to the power x.", ((0.0,), 1.0), el.exp, interval=_fixed(0, math.inf), cost=20),
    _row("exp2(x: num) -> float", "2 to the power x.", ((3.0,), 8.0), el.exp2, interval=_fixed(0, math.inf), cost=20),
    _row("expm1(x: num) -> float", "exp(x) - 1, accurate near 0.", ((0.0,), 0.0),
         el.expm1, interval=_fixed(-1, math.inf), cost=22),
    _row("log(x: num) -> float", "The natural logarithm; -inf of 0, NaN below.", ((1.0,), 0.0), el.log, cost=25),
    _row("log2(x: num) -> float", "The logarithm to base 2.", ((8.0,), 3.0), el.log2, cost=27),
    _row("log10(x: num) -> float", "The logarithm to base 10.", ((1.0,), 0.0), el.log10, cost=27),
    _row("log1p(x: num) -> float", "log(1 + x), accurate near 0.", ((0.0,), 0.0), el.log1p, cost=30),
    # angles
    _row("sin(x: num) -> float", "The sine of an angle in radians.", ((0.0,), 0.0),
         angles.sin, interval=_fixed(-1, 1), cost=45),
    _row("cos(x: num) -> float", "The cosine of an angle in radians.", ((0.0,), 1.0),
         angles.cos, interval=_fixed(-1, 1), cost=45),
    _row("tan(x: num) -> float", "The tangent of an angle in radians.", ((0.0,), 0.0), angles.tan, cost=60),
    _row("sinpi(x: num) -> float", "The sine of x half turns: sin(pi * x), cheap and exact at quarters.", ((0.5,), 1.0),
         angles.sinpi, interval=_fixed(-1, 1), cost=25),
    _row("cospi(x: num) -> float", "The cosine of x half turns: cos(pi * x), cheap and exact at quarters.", ((1.0,), -1.0),
         angles.cospi, interval=_fixed(-1, 1), cost=25),
    _row("asin(x: num) -> float", "The angle whose sine is x.", ((0.0,), 0.0), angles.asin, cost=50),
    _row("acos(x: num) -> float", "The angle whose cosine is x.", ((1.0,), 0.0), angles.acos, cost=55),
    _row("atan(x: num) -> float", "The angle whose tangent is x.", ((0.0,), 0.0), angles.atan, cost=35),
    _row("atan2(y: num, x: num) -> float", "The angle of the point (x, y), from -pi to pi.", ((0.0, 1.0), 0.0),
         angles.atan2, cost=45),
    _row("sinh(x: num) -> float", "The hyperbolic sine.", ((0.0,), 0.0), el.sinh, cost=35),
    _row("cosh(x: num) -> float", "The hyperbolic cosine.", ((0.0,), 1.0), el.cosh, interval=_fixed(1, math.inf), cost=30),
    _row("tanh(x: num) -> float", "The hyperbolic tangent.", ((0.0,), 0.0), el.tanh, interval=_fixed(-1, 1), cost=30),
    # functions of networks
    _row("sigmoid(x: num) -> float", "1 / (1 + exp(-x)).", ((0.0,), 0.5), el.sigmoid, interval=_fixed(0, 1), cost=28),
    _row("relu(x: num) -> num", "x where it is positive, else 0; NaN for NaN.", ((-3,), 0), lambda k, x: k.call("max", x, 0),
         interval=_relu_interval),
    _row("erf(x: num) -> float", "The error function.", ((0.0,), 0.0), el.erf, interval=_fixed(-1, 1), cost=60),
    _row("is_nan(x: num) -> bool", "Is x not a number.", ((1.0,), False), lambda k, x: k.call("ne", x, x, dtype="bool")),
    _row("is_inf(x: num) -> bool", "Is x infinite.", ((1.0,), False),
         lambda k, x: k.call("ne", x, x, dtype="bool") if _is_int(x) else k.call("eq", k.call("abs", x), math.inf, dtype="bool")),
    # bits
    _row("bit_and(a: int, b: int) -> int", "The bits set in both.", ((6, 3), 2), _direct("bitand")),
    _row("bit_or(a: int, b: int) -> int", "The bits set in one of them.", ((6, 3), 7), _direct("bitor")),
    _row("bit_xor(a: int, b: int) -> int", "The bits set in exactly one of them.", ((6, 3), 5), _direct("bitxor")),
    _row("shift_left(x: int, n: int) -> int", "x times 2 to the power n ≥ 0.", ((3, 2), 12),
         _shift_left, overflow=shift_left_overflow),
    _row("shift_right(x: int, n: int) -> int", "x divided by 2 to the power n ≥ 0, rounded down.", ((-5, 1), -3),
         _shift_right,
         overflow=shift_right_overflow),
)
SCALARS: dict[str, Scalar] = {row.name: row for row in _ROWS}


def overflows(fn: str, *args: Any) -> Any:
    """Where function `fn` of integer arrays (as i64) is past i64 or undefined: a mask."""
    scalar = SCALARS[fn]
    arrays = [np.asarray(a).astype(np.int64) for a in args]
    if scalar.overflow is None:
        return np.zeros(np.broadcast_shapes(*(a.shape for a in arrays)), np.bool_)
    with np.errstate(all="ignore"):
        return scalar.overflow(ARRAYS, *arrays)
