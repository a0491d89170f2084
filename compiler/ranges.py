"""The least and greatest value that a node (or an element of a tensor) can have, computed bottom-up.

`Ranges` is given what is known of single atoms and answers with `Range`s that contain every value the node
can take; arithmetic isn't cut off at i64, so a sum that may overflow shows it.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dsl.types import FLOATS, INT_RANGE, INTS, Type
from ..kernels.ops import OPERATORS, Operator
from .graph import Node
from .linear import Poly, linear
from .linear import of as linear_of

LARGEST_SIZE = 2**48  # no tensor has more places: memory's addresses end there
DEEPEST = 120
MOST_VISITS = 20_000
INF = math.inf


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; `nan`: or not a number."""

    low: float
    high: float
    nan: bool = False

    def hull(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), self.nan or other.nan)

    def meet(self, other: Range) -> Range:
        """What both allow; `self` where they contradict each other (then nothing ever gets there)."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high, self.nan and other.nan) if low <= high else self


BOOLS = Range(0, 1)


def whole(type: Type) -> Range:
    """Every value of a dtype."""
    if type.dtype in INTS:
        return Range(*INT_RANGE[type.dtype])
    return BOOLS if type.dtype == "bool" else Range(-INF, INF, True)


def times(a: float, b: float) -> float:
    if a == 0 or b == 0:
        return 0
    if a in (INF, -INF) or b in (INF, -INF):  # an int may be too large to be turned into a float
        return INF if (a > 0) == (b > 0) else -INF
    return a * b


def product(a: Range, b: Range) -> Range:
    ends = [times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(ends), max(ends), a.nan or b.nan)


def _floor_quotient(a: Range, b: Range) -> Range:
    """Ends of a // b for integers; a divisor is never 0 where there is a value."""
    divisors = [d for d in (b.low, b.high, -1, 1) if b.low <= d <= b.high and d != 0]
    if not divisors or INF in (abs(a.low), abs(a.high), abs(b.low), abs(b.high)):
        return Range(-INF, INF)
    ends = [int(x) // int(d) for x in (a.low, a.high) for d in divisors]
    return Range(min(ends), max(ends))


def _remainder(a: Range, b: Range) -> Range:
    if b.low > 0:
        return Range(0, min(a.high, b.high - 1)) if a.low >= 0 else Range(0, b.high - 1)
    return Range(min(b.low + 1, 0), max(b.high - 1, 0))


def rounded(value: float, dtype: str) -> float:
    """`value` as the float `dtype` nearest to it."""
    if math.isinf(value):
        return value
    if dtype == "f64":
        try:
            return float(value)
        except OverflowError:
            return math.copysign(INF, value)
    with np.errstate(all="ignore"):
        narrow = float(np.float32(rounded(value, "f64")))
        if dtype == "f16":
            return float(np.float16(narrow))
    if dtype == "bf16":  # one step outward is enough: bf16 keeps 8 bits of f32's 24
        return narrow + math.copysign(abs(narrow) * 2**-7 + 1e-38, narrow) if narrow else narrow
    return narrow


class Ranges:
    """Ranges under what is known of atoms (`known`) and the ranges of binders met on the way."""

    def __init__(self, known: Mapping[Node, Range] | None = None, binders: Mapping[int, Range] | None = None):
        self.known = dict(known or {})
        self.binders = dict(binders or {})
        self.memo: dict[Node, Range] = {}
        self.depth = 0
        self.visits = 0

    def value(self, n: Node) -> Range:
        """The values `n` can have (where it has one: arithmetic past i64 has none)."""
        full = whole(n.type)
        return full.meet(self.of(n)) if n.type.dtype in INTS else self.of(n)

    def of(self, n: Node) -> Range:
        found = self.memo.get(n)
        if found is not None:
            return found
        if self.depth == 0:
            self.visits = 0
        self.visits += 1
        if self.depth > DEEPEST or self.visits > MOST_VISITS:
            return whole(n.type) if n.op != "apply" else Range(-INF, INF, True)
        self.depth += 1
        try:
            result = self._bounded(n)
        finally:
            self.depth -= 1
        self.memo[n] = result
        return result

    def _bounded(self, n: Node) -> Range:
        result: Range = _RULES.get(n.op, _anything)(self, n)
        if n.type.dtype in INTS and not n.type.dims:
            p = linear(n)
            if p.terms != (((n,), 1),) or p.constant:
                result = result.meet(self.poly(p))
        known = self.known.get(n)
        return result if known is None else result.meet(known)

    def poly(self, p: Poly) -> Range:
        low: float = p.constant
        high: float = p.constant
        for m, c in p.terms:
            r = Range(c, c)
            for factor in m:
                r = product(r, self.value(factor))
            low, high = low + r.low, high + r.high
        return Range(low, high)

    # --- one rule per op ----------------------------------------------------------------------------

    def const(self, n: Node) -> Range:
        values = n["value"] if isinstance(n["value"], tuple) else (n["value"],)
        if n.type.dtype not in (*INTS, *FLOATS, "bool") or not values:
            return whole(n.type)
        usual = [v for v in values if v == v]
        nan = len(usual) < len(values)
        if not usual:
            return Range(0, 0, True)
        low, high = min(usual), max(usual)
        if n.type.dtype in FLOATS:
            return Range(rounded(low, n.type.dtype), rounded(high, n.type.dtype), nan)
        return Range(int(low), int(high))

    def var(self, n: Node) -> Range:
        return self.binders.get(n["id"], Range(0, INT_RANGE["i64"][1]))

    def draw(self, n: Node) -> Range:
        match n["dist"]:
            case "integers":
                return Range(self.value(n.args[0]).low, self.value(n.args[1]).high - 1)
            case "permutation":
                return Range(0, max(self.value(n.args[0]).high - 1, 0))
            case "uniform":
                a, b = self.value(n.args[0]), self.value(n.args[1])
                return Range(a.low, b.high, a.nan or b.nan or INF in (-a.low, b.high))
            case _:
                return whole(n.type)

    def apply(self, n: Node) -> Range:
        fn, args = n["fn"], [self.value(a) for a in n.args]
        integers = all(a.type.dtype in INTS for a in n.args)
        if n.type.dtype == "bool":
            return BOOLS
        if integers and n.type.dtype in INTS and fn in _INTEGER:
            return _INTEGER[fn](*args)
        return self._scalar(n, fn, args)

    def _scalar(self, n: Node, fn: str, args: list[Range]) -> Range:
        """From the function's own row; of a float's result it is never known that it isn't NaN, except here."""
        if fn in ("add", "sub", "mul") and n.type.dtype in ("f32", "f64"):
            r = _INTEGER[fn](*args)
            risky = any(INF in (abs(a.low), abs(a.high)) for a in args)
            low, high = (-INF if math.isnan(r.low) else r.low), (INF if math.isnan(r.high) else r.high)
            return Range(rounded(low, n.type.dtype), rounded(high, n.type.dtype), risky or any(a.nan for a in args))
        from ..kernels.scalar import SCALARS

        row = SCALARS.get(fn)
        if row is not None and row.interval is None and row.overflow is not None and n.type.dtype in INTS:
            return Range(-INF, INF)   # of `^` and shifts it isn't known how far they reach
        if row is None or row.interval is None:
            return whole(n.type)
        low, high = row.interval(*((a.low, a.high) for a in args))
        if n.type.dtype in INTS:
            return Range(low, high)
        safe = fn in _KEEPS_NUMBERS and not any(a.nan for a in args)
        return Range(rounded(low, n.type.dtype), rounded(high, n.type.dtype), not safe)

    def cast(self, n: Node) -> Range:
        source, to = n.args[0].type.dtype, n.type.dtype
        r, full = self.value(n.args[0]), whole(n.type)
        if to == "bool" or n.get("mode") == "bits" or (source not in (*INTS, *FLOATS, "bool")):
            return full
        if to in FLOATS:
            return Range(rounded(r.low, to), rounded(r.high, to), r.nan)
        if source not in FLOATS:
            inside = full.low <= r.low and r.high <= full.high
            if not inside and n.get("mode") == "exact":
                return full
            return Range(_kept(r.low, full), _kept(r.high, full))
        turn = math.trunc if n.get("mode") == "truncate" else round
        low, high = (_kept(e if math.isinf(e) else turn(e), full) for e in (r.low, r.high))
        return Range(min(low, 0), max(high, 0)) if r.nan else Range(low, high)

    def either(self, n: Node) -> Range:
        return self.value(n.args[-2]).hull(self.value(n.args[-1]))

    def element(self, n: Node) -> Range:
        return self.value(n.args[0])

    def bind(self, n: Node) -> None:
        """The binders of a build or reduce get their ranges; met before with others, they get both."""
        for id, extent in zip(n["ids"], n.args[1:], strict=True):
            new = Range(0, max(self.value(extent).high - 1, 0))
            old = self.binders.get(id)
            if old is None or new.high > old.high:
                self.binders[id] = new
                if old is not None:
                    self.memo.clear()

    def build(self, n: Node) -> Range:
        self.bind(n)
        return self.value(n.args[0])

    def reduce(self, n: Node) -> Range:
        self.bind(n)
        count = Range(1, 1)
        for extent in n.args[1:]:
            e = self.value(extent)
            count = product(count, Range(max(e.low, 0), max(e.high, 0)))
        match n["kind"]:
            case "min" | "max":
                return self.value(n.args[0])
            case "argmax" | "argmin" | "first":
                return Range(0, max(count.high - 1, 0))
            case "any" | "all":
                return BOOLS
            case "sum" if n.type.dtype in INTS:
                return product(count, self.value(n.args[0]))
            case "sum" if self.value(n.args[0]).low >= 0:
                return Range(0, INF, True)
            case _:
                return Range(-INF, INF, True)

    def call(self, n: Node, part: str | None = None) -> Range:
        operator = operator_of(n)
        if operator is None:
            return whole(n.type)
        limit = whole(n.type)
        if operator.stop is not None and n.type.dtype in INTS:
            limit = Range(limit.low, self.poly(operator.stop(*dims_of(n))).high - 1)
        if operator.ranges is None:
            return limit
        given = operator.ranges(*((r.low, r.high) for r in map(self.value, n.args)))
        if isinstance(given, dict):
            given = given.get(part)
        return limit if given is None else Range(given[0], given[1], n.type.dtype in FLOATS).meet(limit)

    def extent(self, n: Node) -> Range:
        operator = operator_of(n)
        least = operator.least_sizes.get((n.get("part", ""), n["axis"]), 0) if operator is not None else 0
        return Range(least, LARGEST_SIZE)

    def part(self, n: Node) -> Range:
        inner = self.call(n.args[0], n["name"]) if n.args[0].op == "call" else whole(n.type)
        return whole(n.type).meet(inner)


def _least_size(n: Node) -> int:
    """A size of an operator's result may be known not to be 0."""
    operator = operator_of(n)
    return int(operator.least_sizes.get((n["part"], n["axis"]), 0)) if operator is not None else 0


def operator_of(n: Node) -> Operator | None:
    """The operator that a call, or a size that only a call's result has, speaks of."""
    try:
        return OPERATORS[n.get("op", "")]
    except KeyError:
        return None


def dims_of(call: Node) -> list[tuple[Poly, ...]]:
    """The dims of a call's args, as an operator's `stop` takes them."""
    return [tuple(linear_of(d) for d in a.type.dims) for a in call.args]


def _anything(ranges: Ranges, n: Node) -> Range:
    return whole(n.type)


def _kept(value: float, full: Range) -> float:
    return min(max(value, full.low), full.high)



def _least(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), min(a.high, b.high), a.nan or b.nan)


def _greatest(a: Range, b: Range) -> Range:
    return Range(max(a.low, b.low), max(a.high, b.high), a.nan or b.nan)


def _magnitude(a: Range) -> Range:
    low = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Range(low, max(abs(a.low), abs(a.high)), a.nan)


_INTEGER: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: Range(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Range(a.low - b.high, a.high - b.low),
    "mul": product,
    "neg": lambda a: Range(-a.high, -a.low),
    "min": _least,
    "max": _greatest,
    "abs": _magnitude,
    "clamp": lambda x, low, high: _least(_greatest(x, low), high),
    "floordiv": _floor_quotient,
    "mod": _remainder,
}
# results of these are numbers where the args are
_KEEPS_NUMBERS = frozenset(["neg", "min", "max", "abs", "clamp", "floor", "ceil", "round", "trunc", "relu", "sign"])

_RULES: dict[str, Any] = {
    "const": Ranges.const,
    "var": Ranges.var,
    "draw": Ranges.draw,
    "apply": Ranges.apply,
    "cast": Ranges.cast,
    "select": Ranges.either,
    "fill": Ranges.either,
    "index": Ranges.element,
    "build": Ranges.build,
    "reduce": Ranges.reduce,
    "call": Ranges.call,
    "part": Ranges.part,
    "count": lambda ranges, n: Range(0, LARGEST_SIZE),
    "extent": lambda ranges, n: Range(_least_size(n), LARGEST_SIZE),
    "epoch": lambda ranges, n: Range(0, INT_RANGE["i64"][1]),
}
